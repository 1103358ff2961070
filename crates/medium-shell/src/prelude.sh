# Runs in the bash of an entity before its first command. Commands come on standard input, each ended by a NUL. Their
# output goes to standard output; their exit status and the state of the shell go to standard error.
#
# The mark that ends an output is read only after the command has ended, so no command can print it. `break` and
# `continue` in a command reach these loops, which is why there are two of them and why a command is reported at the
# beginning of the next round.
exec 7<&0 8>&2 9>&1
exec 0</dev/null 2>&1
ulimit -c 0
ulimit -f @FILE_KIB@
ulimit -n @FILES_OPEN@
ulimit -u @PROCESSES@ 2>/dev/null
unset OLDPWD
printf 'entity:x:1000:1000:entity:/tmp:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n' >/etc/passwd
printf 'entity:x:1000:\nnogroup:x:65534:\n' >/etc/group
printf 'ready\0' >&8
__cantrip_ran=
while :; do
  while :; do
    if [ -n "$__cantrip_ran" ]; then
      exec 0</dev/null 1>&9 2>&9
      builtin printf '%d %s\0' "$__cantrip_status" "$PWD" >&8
      IFS= builtin read -r -d '' -u 7 __cantrip_mark || builtin exit 0
      builtin printf '\0%s\0' "$__cantrip_mark"
    fi
    IFS= builtin read -r -d '' -u 7 __cantrip_command || builtin exit 0
    __cantrip_ran=1 __cantrip_status=0
    builtin eval "$__cantrip_command" 7<&- 8>&- 9>&-
    __cantrip_status=$?
  done
done
