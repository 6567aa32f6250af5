_fedbilevel_types() {
  local -a names=(NAMES)
  compadd -a names
}
