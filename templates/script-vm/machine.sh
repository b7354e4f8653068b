#!/bin/sh
# Makes and destroys one machine: one JSON document on stdin, one on stdout. What is for
# people goes to stderr. The cloud is a directory, and a machine is a file in it whose name
# has the id that Tendril gave the machine; so asked twice, it makes one. A script of your
# own may be in any language, and read JSON with jq.
set -eu

read -r request
field() { printf '%s' "$request" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
id=$(field contract_id)
cloud=$(field cloud)
machine=$cloud/vm-$id

case $(field action) in
provision)
  mkdir -p -m 0777 "$cloud" # runs may have a user of their own each
  echo "creating vm-$id" >&2
  sleep 1
  printf '%s\n' "$request" > "$machine"
  password=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
  echo "{\"success\": true, \"instance\": {\"external_id\": \"vm-$id\", \"ip_address\": \"192.0.2.10\", \"ssh_port\": 22, \"root_password\": \"$password\"}}"
  ;;
terminate)
  echo "destroying vm-$id" >&2
  rm -f "$machine"
  echo '{"success": true}'
  ;;
*)
  echo '{"success": false, "error": "this script only makes and destroys machines"}'
  ;;
esac
