# Shared by the scripts here; sourced, not run. `need demo|test|live` makes .venv fit for that purpose
# and is quick when it is already: a stamp in .venv names the pyproject.toml that it was installed from.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
py=.venv/bin/python
unset PYTHONDONTWRITEBYTECODE  # hosts and kernels that tests start would each compile us anew
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

say() { printf '%s\n' "$*" >&2; }

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
has_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Every Python of that name on PATH, newest first: the first may be a shim that does not run.
candidates() {
  local name
  for name in python3.13 python3.12 python3.11 python3 python; do type -aP "$name" || true; done
}

# Prints the first candidate that runs, is 3.11 to 3.13 and passes the test named by $1.
find_python() {
  local python
  while read -r python; do
    if fits "$python" && "$1" "$python"; then echo "$python"; return 0; fi
  done < <(candidates)
  return 1
}

lacks_venv() { ! has_venv "$1"; }

# The Debian packages that are missing: venv for a Python that has none, or Python itself.
missing_packages() {
  local python
  if python=$(find_python lacks_venv); then
    "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
  else
    echo "python3 python3-venv"
  fi
}

apt_install() {
  say "Installing $*"
  apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >&2
}

make_venv() {
  local python packages
  if ! python=$(find_python has_venv) && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    read -ra packages <<<"$(missing_packages)"
    apt_install "${packages[@]}" || say "apt-get could not install ${packages[*]}."
  fi
  if python=$(find_python has_venv); then
    say "Making .venv with $python"
    "$python" -m venv --clear .venv
  elif command -v uv >/dev/null; then
    say "Making .venv with uv"
    uv venv --quiet --clear --seed --python '>=3.11,<3.14' .venv
  else
    say "No Python 3.11, 3.12 or 3.13 was found that can make a virtual environment."
    if command -v apt-get >/dev/null; then say "Type: sudo apt-get install $(missing_packages)"; fi
    say "Or install Python 3.13 or uv, put it on PATH, and run this again."
    return 1
  fi
}

stamp() { { pwd; "$py" -V; cat pyproject.toml; } | cksum; }

install_for() {
  local pip=("$py" -m pip install --quiet --no-compile)
  case $1 in
    demo) "${pip[@]}" --editable . ;;
    test) "${pip[@]}" --editable '.[all]' --group test --group lint ;;
    live) "${pip[@]}" --editable '.[all,local]' --group test --group lint ;;
  esac
  compile_packages
}

# What pip would do on one core, on all of them, and without the tests of the packages.
compile_packages() {
  local packages
  packages=$("$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$py" -m compileall -q -j 0 -x '/site-packages/.*/tests?/' "$packages" >/dev/null 2>&1 || true
}

# What is installed for the tests serves the demo as well, and what is for live runs serves both.
installed() {
  local purpose
  for purpose in live test demo; do
    [ "$(cat ".venv/.cave-$purpose" 2>/dev/null)" = "$(stamp)" ] && return 0
    [ "$purpose" = "$1" ] && return 1
  done
}

need() {
  fits "$py" || make_venv
  "$py" -m pip --version >/dev/null 2>&1 || "$py" -m ensurepip >/dev/null
  if ! installed "$1"; then
    say "Installing cave and what it needs into .venv (once, a minute or two)"
    "$py" -m pip install --quiet --upgrade 'pip>=25.1'
    install_for "$1"
    stamp >".venv/.cave-$1"
  fi
  export PATH="$PWD/.venv/bin:$PATH"
}
