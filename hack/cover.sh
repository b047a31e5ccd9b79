#!/usr/bin/env bash
# Shows which share of the statements of each package the tests of "make unit" run, whichever package
# they are in. Generated code is left out. It fails when a package of the data path has less than 85 %.
#
#   hack/cover.sh [PROFILE]    of a profile of before instead of running the tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

profile=${1:-}
if [[ -z $profile ]]; then
  mkdir -p bin
  profile=bin/cover.out
  drawing=$(go list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' ./... | awk '/pgregory.net\/rapid/ {print $1}')
  others=$(go list ./... | grep -v '/attacks$' | grep -vxF "$drawing")
  packages=$(go list ./... | grep -Ev '/(attacks|tools/mutants|testdata|testing/[a-z]+|statepb)$' | paste -sd,)
  # shellcheck disable=SC2086 # lists of words
  go test -timeout 60m -coverpkg="$packages" -coverprofile="$profile.others" $others | sed "s/ of statements in .*//" >&2
  # shellcheck disable=SC2086
  go test -timeout 60m -coverpkg="$packages" -coverprofile="$profile.drawing" $drawing -rapid.seed=1 | sed "s/ of statements in .*//" >&2
  cat "$profile.others" "$profile.drawing" >"$profile"
fi

# A line is FILE:FROM,TO STATEMENTS COUNT, once for each package of tests.
awk '
  /^mode:/ { next }
  { if (!($1 in n)) n[$1] = $2; if ($3 > 0) hit[$1] = 1 }
  END {
    for (block in n) {
      pkg = block; sub(/\/[^\/]*$/, "", pkg); sub(/^meshrelay\//, "", pkg)
      all[pkg] += n[block]; total += n[block]
      if (block in hit) { run[pkg] += n[block]; ran += n[block] }
    }
    for (pkg in all) {
      share = 100 * run[pkg] / all[pkg]
      data = pkg ~ /^(adsclient|mirror|upstreams|federation|push|downstream|sink|state)(\/|$)/
      few = data && share < 85
      if (few) failed = 1
      printf "%5.1f %%  %5d  %s%s\n", share, all[pkg], pkg, few ? "  under 85 %" : (data ? "  data path" : "") | "sort -k4"
    }
    close("sort -k4")
    printf "%5.1f %%  %5d  all\n", 100 * ran / total, total
    exit failed
  }' "$profile"
