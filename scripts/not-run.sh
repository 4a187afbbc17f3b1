# Sourced by the other scripts. `not_run NAME REASON` says that the check NAME did not run, and why;
# kmem_testing::not_run does the same for tests. With KMEM_NOT_RUN set to an absolute path the line
# is also appended to that file.
not_run() {
  local line="not run: $1, because $2"
  printf '%s\n' "$line" >&2
  if [ -n "${KMEM_NOT_RUN:-}" ]; then
    printf '%s\n' "$line" >>"$KMEM_NOT_RUN"
  fi
}
