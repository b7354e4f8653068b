#!/usr/bin/env python3
"""A provisioner for Tendril, written in Python with nothing but its standard library.

Its cloud is a directory: each file in it is a machine, and has the id that Tendril gave to
that machine. FAKE_CLOUD names the directory; without it, ./cloud. FAKE_CLOUD_SECONDS is how
long the cloud takes to make a machine. It makes it without this program, which may detach
meanwhile and be started again.

docs/PROVISIONERS.md of Tendril is the specification. Check a change with

    tendril provisioner test python3 fake_cloud.py
"""
import contextlib
import json
import os
import secrets
import sys
import threading
import time

PROTOCOL = "tendril-provisioner/1"
CLOUD = os.environ.get("FAKE_CLOUD", "cloud")
SECONDS = float(os.environ.get("FAKE_CLOUD_SECONDS", "0"))


class Failure(Exception):
    """Ends the request with this result."""

    def __init__(self, code, message, retry=False):
        super().__init__(message)
        self.code, self.retry = code, retry


class Agent:
    """What is read from Tendril's agent on stdin, and written to it on stdout."""

    def __init__(self):
        self.cancelled = False
        self.detached = False
        self.ended = False  # nobody acknowledges any more
        self.acks = {}
        self.news = threading.Condition()
        self.intents = 0

    def listen(self):
        """Takes acks, cancel and detach until stdin ends. It runs in a thread of its own."""
        for line in sys.stdin:
            message = json.loads(line)
            with self.news:
                if message["type"] == "ack":
                    self.acks[message["id"]] = message
                elif message["type"] == "cancel":
                    self.cancelled = True
                elif message["type"] == "detach":
                    self.detached = True
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def send(self, kind, **fields):
        print(json.dumps({"type": kind, **fields}, ensure_ascii=False), flush=True)

    def stop_if_asked(self):
        if self.cancelled:
            raise Failure("cancelled", "the run was cancelled")
        if self.detached:
            raise Failure("detached", "the cloud continues by itself")

    def wait(self, until):
        """Waits until that time, or until the program is asked to stop."""
        with self.news:
            self.news.wait_for(lambda: self.cancelled or self.detached, max(0, until - time.time()))
        if until > time.time():
            self.stop_if_asked()

    def intent(self, machine, action, **fields):
        """Says what is about to be done, and returns once that is recorded."""
        self.intents += 1
        number = str(self.intents)
        self.send("intent", id=number, machine=machine, action=action, **fields)
        with self.news:
            self.news.wait_for(lambda: number in self.acks or self.ended or self.cancelled)
            ack = self.acks.get(number)
        if ack is None:
            self.stop_if_asked()
            raise Failure("refused", "stdin has ended, so nobody can record the intent")
        if not ack["ok"]:
            self.stop_if_asked()
            raise Failure("refused", ack.get("message", "the intent was refused"))


# The cloud. Replace this part by your cloud's client.


def machines():
    """All machines: what is in their files, and their ids in the cloud."""
    for name in sorted(os.listdir(CLOUD)) if os.path.isdir(CLOUD) else []:
        if name.startswith("vm-"):
            with open(os.path.join(CLOUD, name), encoding="utf-8") as file:
                yield {**json.load(file), "external_id": name}


def find(machine_id):
    """The machine that bears an id, or None. Never go by the name alone."""
    return next((m for m in machines() if m["id"] == machine_id), None)


def save(vm):
    """Writes a machine and renames it, so that it is there as a whole or not at all."""
    os.makedirs(CLOUD, exist_ok=True)
    new = os.path.join(CLOUD, ".new-" + vm["external_id"])
    with open(new, "w", encoding="utf-8") as file:
        json.dump({k: v for k, v in vm.items() if k != "external_id"}, file, ensure_ascii=False)
    os.rename(new, os.path.join(CLOUD, vm["external_id"]))


def report(vm, **more):
    return {"id": vm["id"], "name": vm["name"], "external_id": vm["external_id"], "node": "fake-1",
            "address": "192.0.2.%d" % (1 + ord(vm["external_id"][-1])), "ssh_port": 22, "status": vm["status"], **more}


SIZE = ("image", "cores", "memory")


def change_of(mode, wanted, vm):
    """Compares a machine with what is there."""
    change = {"machine": wanted["id"], "action": "none"}
    if mode == "destroy":
        change["action"] = "destroy" if vm else "none"
        return change
    differs = [n for n in SIZE if wanted.get(n) != (vm or {}).get(n)]
    if vm is None:
        change["action"] = "create"
    elif "image" in differs:
        change.update(action="replace", why="a new image needs a new disk")
    elif differs:
        change["action"] = "change"
    change["attributes"] = [{"name": n, "before": (vm or {}).get(n), "after": wanted.get(n)} for n in differs]
    return change


# The requests.


def targeted(request, wanted):
    return not request.get("targets") or wanted["name"] in request["targets"]


def describe(request, agent):
    if PROTOCOL not in request.get("protocols", []):
        raise Failure("unsupported_protocol", "this program speaks " + PROTOCOL)
    return {"protocol": PROTOCOL, "name": "fake-cloud-python", "version": "1.0.0", "idempotent": True, "detachable": True,
            "actions": [name for name in REQUESTS if name != "describe"]}


def plan(request, agent):
    for wanted in request["machines"]:
        if targeted(request, wanted):
            agent.send("change", **change_of(request["mode"], wanted, find(wanted["id"])))
    for old in request.get("obsolete", []):
        if targeted(request, old) and find(old["id"]):
            agent.send("change", machine=old["id"], action="destroy", why="the template no longer declares it")


def apply(request, agent):
    wanted = {m["id"]: m for m in request["machines"] + request.get("obsolete", [])}
    begun = begun_by(request)
    for change in request["changes"]:
        if "machine" not in change:
            continue
        agent.stop_if_asked()  # here nothing is half done
        carry_out(change["action"], wanted[change["machine"]], agent, change["machine"] in begun)
    agent.send("state", value={"cloud": CLOUD})


def begun_by(request):
    """The ids of machines that an earlier program has begun to make, of this same request."""
    return {i["machine"] for i in request.get("intents", [])} if request.get("resume") else set()


def carry_out(action, wanted, agent, begun):
    vm = find(wanted["id"])
    if action in ("create", "replace"):
        make(action, wanted, agent, begun)
    elif action == "destroy":
        if vm:
            agent.intent(wanted["id"], "destroy", external_id=vm["external_id"])
            with reported(wanted, agent):
                os.remove(os.path.join(CLOUD, vm["external_id"]))
        agent.send("machine", id=wanted["id"], name=wanted["name"], status="gone")
    elif vm:
        if action == "change":
            vm.update({n: wanted.get(n) for n in SIZE})
            save(vm)
        agent.send("machine", **report(vm))


@contextlib.contextmanager
def reported(wanted, agent):
    """Reports a machine of which an acknowledged intent was not carried out to its end."""
    try:
        yield
    except Exception:
        agent.send("machine", id=wanted["id"], name=wanted["name"], status="unknown")
        raise


def make(action, wanted, agent, begun=False):
    """Creates a machine, or replaces it. An earlier attempt may have begun that already."""
    if not begun:
        agent.intent(wanted["id"], action, name=wanted["name"])
    agent.send("step", id="create", label="Creating the machine", machine=wanted["id"], percent=0)
    with reported(wanted, agent):
        vm = find(wanted["id"]) or {"id": wanted["id"], "external_id": "vm-" + secrets.token_hex(6)}
        if not begun or "ready_at" not in vm:
            vm["ready_at"] = time.time() + SECONDS
        vm.update({"name": wanted["name"], "status": "running", **{n: wanted.get(n) for n in SIZE}})
        save(vm)
    if vm["ready_at"] > time.time():
        agent.send("machine", **{**report(vm), "status": "creating"})
        agent.wait(vm["ready_at"])
    agent.send("step", id="create", machine=wanted["id"], percent=100)
    agent.send("machine", **report(vm, credentials={"root_password": secrets.token_urlsafe(16)}))


def refresh(request, agent):
    for wanted in request["machines"] + request.get("obsolete", []):
        vm = find(wanted["id"])
        agent.send("machine", **(report(vm) if vm else {"id": wanted["id"], "name": wanted["name"], "status": "gone"}))


def need(request):
    vm = find(request["machine"])
    if vm is None:
        raise Failure("failed", "machine %s doesn't exist: apply creates it" % request["machine"])
    return vm


def power(request, agent):
    vm = need(request)
    vm["status"] = "stopped" if request["action"] == "stop" else "running"
    save(vm)
    agent.send("machine", **report(vm))


def rebuild(request, agent):
    need(request)
    make("replace", next(m for m in request["machines"] if m["id"] == request["machine"]), agent, request["machine"] in begun_by(request))


def health(request, agent):
    vm = find(request["machine"])
    return {"health": "healthy" if vm and vm["status"] == "running" else "unhealthy"}


REQUESTS = {"describe": describe, "plan": plan, "apply": apply, "destroy": apply, "refresh": refresh,
            "power": power, "rebuild": rebuild, "health": health}


def main():
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    agent = Agent()
    try:
        request = json.loads(sys.stdin.readline())
        carry = REQUESTS.get(request["type"])
        if carry is None:
            raise Failure("unsupported", "this program has no action " + request["type"])
        threading.Thread(target=agent.listen, daemon=True).start()
        result = {"ok": True, **(carry(request, agent) or {})}
    except Failure as failure:
        result = {"ok": False, "code": failure.code, "message": str(failure), "retry": failure.retry}
    except (ValueError, KeyError, TypeError) as error:
        result = {"ok": False, "code": "invalid", "message": "the request can't be used: %r" % error}
    except OSError as error:
        result = {"ok": False, "code": "unreachable", "message": "ask the cloud: %s" % error, "retry": True}
    agent.send("result", **result)
    sys.stdout.flush()
    os._exit(0)  # the thread may still wait for stdin


if __name__ == "__main__":
    main()
