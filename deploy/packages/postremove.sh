#!/bin/sh
# Of deb and rpm. The state in /var/lib/relay stays.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
