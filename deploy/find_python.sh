#!/bin/sh
# Print the path of a Python that CosyStream runs on: $1 if given, else the first of the usual names that is 3.11 or newer and
# can make a virtual environment. Prints what to do and fails if there is none.
check='
import sys, importlib.util as u
if sys.version_info < (3, 11):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
if not (u.find_spec("venv") and u.find_spec("ensurepip")):
    sys.exit("cannot make virtual environments (on Debian and Ubuntu: apt install python%d.%d-venv)" % sys.version_info[:2])
print(sys.executable)
'
[ -n "${1:-}" ] || set -- python3 python3.13 python3.12 python3.11 python
seen=""
for name in "$@"; do
    if ! command -v "$name" >/dev/null 2>&1; then
        seen="$seen  $name: not found
"
    elif answer=$("$name" -c "$check" 2>&1); then
        printf '%s\n' "$answer"
        exit 0
    else
        seen="$seen  $name: $(printf '%s\n' "$answer" | head -n 1)
"
    fi
done
printf 'CosyStream needs Python 3.11 or newer with venv. Tried:\n%sName one with: make setup PYTHON=/path/to/python3\n' "$seen" >&2
exit 1
