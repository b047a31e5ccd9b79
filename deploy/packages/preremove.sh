#!/bin/sh
# Of deb and rpm. An upgrade (rpm: 1, dpkg: upgrade) leaves the relay running.
set -e
case "$1" in
0 | remove)
  if [ -d /run/systemd/system ]; then
    systemctl disable --now relay.service
  fi
  ;;
esac
