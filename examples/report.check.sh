# The answer comes as JSON on standard input. Status 0 accepts it, and a score may be printed.
answer=$(cat)
case "$answer" in
  *'"sources":[]'*) echo "name at least one source"; exit 1 ;;
esac
echo '{"score": 0.9}'
