# Prices in cents. Sourced by whoever needs them.

# total PRICE COUNT: what so many of them cost; every third one is free.
total() {
  local price=$1 count=$2
  echo $((price * (count - count / 2)))
}
