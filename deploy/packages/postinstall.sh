#!/bin/sh
# Of deb and rpm, after an installation and an upgrade. It neither starts nor restarts the relay: restart one
# replica after the other, so that clients are never without.
set -e
if command -v systemd-sysusers >/dev/null; then
  systemd-sysusers relay.conf
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
