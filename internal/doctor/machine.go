package doctor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/caches"
	"github.com/tendril-run/tendril/internal/config"
	"github.com/tendril-run/tendril/internal/dirlock"
	"github.com/tendril-run/tendril/internal/executor"
	"github.com/tendril-run/tendril/internal/job"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/secretfile"
)

func (d *doctor) configuration(context.Context) verdict {
	from := "the environment"
	if d.File != "" {
		from = d.File + " and the environment"
	}
	if invalid, isInvalid := errors.AsType[*config.Invalid](d.ConfigErr); isInvalid {
		return fail("correct it; docs/CONFIGURATION.md describes each key", "%s: %s", from, strings.Join(invalid.Problems, "; "))
	}
	if d.ConfigErr != nil {
		return fail("name the right file by --config or TENDRIL_CONFIG", "%v", d.ConfigErr)
	}
	if slots, why := d.Config.RunsAtOnce(); why != "" {
		return warn("set slots = 1, or start the agent as root so that each run gets a uid of its own", "%s, agent %q, slots %d, of which %d is used: %s", from, d.Config.Name, d.Config.Slots, slots, why)
	}
	return ok("%s, agent %q, slots %d", from, d.Config.Name, d.Config.Slots)
}

func (d *doctor) dataDir(context.Context) verdict {
	dir := d.Config.DataDir
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if parent := shut(existing(dir)); parent != "" && d.isolates() {
			return fail(fmt.Sprintf("run: chmod o+x %s, or choose another data_dir", strconv.Quote(parent)),
				"%s is not there yet, and %s lets no other user through to it, which runs with uids of their own need", dir, parent)
		}
		return creatable(dir)
	case err != nil:
		return fail("let the agent's user reach it, or set data_dir to another place", "cannot be checked: %v", err)
	case !info.IsDir():
		return fail("set data_dir to a directory", "%s is not a directory", dir)
	}
	owner, ours := -1, false
	if stat, is := info.Sys().(*syscall.Stat_t); is {
		owner, ours = int(stat.Uid), byGroup(info.Mode(), int(stat.Gid))
	}
	if owner != d.uid && d.uid != 0 && !ours {
		return fail(fmt.Sprintf("run this as the user that the agent runs as, or: chown %d %s", d.uid, strconv.Quote(dir)),
			"%s belongs to uid %d, and this runs as uid %d", dir, owner, d.uid)
	}
	if parent := shut(filepath.Dir(dir)); parent != "" && d.isolates() {
		return fail(fmt.Sprintf("run: chmod o+x %s, or choose another data_dir", strconv.Quote(parent)),
			"%s lets no other user through to the data directory, and runs have uids of their own", parent)
	}
	if err := syncs(dir); err != nil {
		return fail("make the file system writable, or set data_dir to another place", "%s does not take a file: %v", dir, err)
	}
	in := ""
	if holder := lockHolder(dir); holder.PID != 0 {
		d.agentRuns = true
		in = fmt.Sprintf(", in use by a running agent: %s", holder)
	}
	switch mode := info.Mode().Perm(); {
	case owner != d.uid && ours:
		return ok("%s, by its group%s", dir, in)
	case mode&0o066 != 0:
		return warn("run: chmod go-rw "+strconv.Quote(dir), "%s can be read or written by others (mode %04o)%s", dir, mode, in)
	case owner != d.uid:
		return warn("if the agent runs as that user, run this as it too", "%s belongs to uid %d, and this runs as root%s", dir, owner, in)
	}
	return ok("%s%s", dir, in)
}

// byGroup tells a volume as Kubernetes mounts it by fsGroup, which stays root's:
// all rights come from a group of this process, and others have none.
func byGroup(mode fs.FileMode, gid int) bool {
	groups, err := os.Getgroups()
	return err == nil && mode&0o077 == 0o070 && (gid == os.Getegid() || slices.Contains(groups, gid))
}

// shut returns the topmost directory on the way that other users may not pass;
// "" for none.
func shut(dir string) string {
	if parent := filepath.Dir(dir); parent != dir {
		if found := shut(parent); found != "" {
			return found
		}
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm()&0o001 != 0 {
		return ""
	}
	return dir
}

// isolates reports whether runs get uids of their own.
func (d *doctor) isolates() bool { return d.uid == 0 && d.Config.Run.UIDs != "off" }

// creatable says whether a directory that is not there can be made.
func creatable(dir string) verdict {
	parent := dir
	for {
		parent = filepath.Dir(parent)
		info, err := os.Stat(parent)
		if errors.Is(err, fs.ErrNotExist) && parent != filepath.Dir(parent) {
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory", parent)
		}
		if err == nil {
			err = unix.Access(parent, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			return fail("make it for the agent's user, or set data_dir to another place",
				"%s is not there and cannot be made in %s: %v", dir, parent, err)
		}
		return ok("%s is not there yet; the agent will make it", dir)
	}
}

// syncs writes a file to the disk and takes it away again. Its name is one that
// an agent's start sweeps.
func syncs(dir string) error {
	file, err := os.CreateTemp(dir, ".tmp-doctor-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString("tendril doctor\n")
	return errors.Join(err, file.Sync(), file.Close())
}

// lockHolder returns the process that holds the lock file; 0 for none, or where
// the system does not tell. To try the lock would for a moment take it, and an
// agent that starts in that moment would not.
func lockHolder(dir string) dirlock.Holder {
	holder, err := dirlock.Last(dir)
	if err != nil {
		return dirlock.Holder{}
	}
	info, err := os.Stat(filepath.Join(dir, "lock"))
	if err != nil {
		return dirlock.Holder{}
	}
	stat, is := info.Sys().(*syscall.Stat_t)
	if !is {
		return dirlock.Holder{}
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return dirlock.Holder{}
	}
	defer locks.Close() //nolint:errcheck // opened for reading
	// 1: FLOCK  ADVISORY  WRITE 4711 fd:01:131 0 EOF
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[4] == strconv.Itoa(holder.PID) &&
			strings.HasSuffix(fields[5], ":"+strconv.FormatUint(stat.Ino, 10)) {
			return holder
		}
	}
	return dirlock.Holder{}
}

const (
	// Less room than diskFail does not take one run: a checkout, a provider, and
	// its log. Less than diskWarn does not take some side by side.
	diskFail = 256 << 20
	diskWarn = 2 << 30
	// A checkout with its modules and providers has thousands of files.
	inodesFail = 1_000
	inodesWarn = 20_000
)

func (d *doctor) disk(context.Context) verdict {
	dir := existing(d.Config.DataDir)
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fail("set data_dir to another place", "the file system of %s does not say how full it is: %v", dir, err)
	}
	free := s.Bavail * uint64(s.Bsize)
	// Some file systems (btrfs) make inodes as they need them and count none.
	limited := s.Files > 0
	const action = "make room, or set data_dir to a larger file system"
	switch {
	case free < diskFail:
		return fail(action, "%s has %s free; one run may need %s", dir, size(free), size(diskFail))
	case limited && s.Ffree < inodesFail:
		return fail(action, "%s has %d inodes free; one run may need %d", dir, s.Ffree, inodesFail)
	case free < diskWarn:
		return warn(action, "%s has %s free; %s or more lets several runs and their providers fit", dir, size(free), size(diskWarn))
	case limited && s.Ffree < inodesWarn:
		return warn(action, "%s has %d inodes free; %d or more lets several runs fit", dir, s.Ffree, inodesWarn)
	}
	return ok("%s free in %s", size(free), dir)
}

// existing is the directory, or the nearest above it that is there.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// size writes a number of bytes for people.
func size(n uint64) string {
	const unit = 1024
	value, suffix := float64(n), "bytes"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if math.Round(value) < unit { // else it would be written as 1024 of the smaller one
			break
		}
		value, suffix = value/unit, next
	}
	if suffix == "bytes" || value >= 10 {
		return fmt.Sprintf("%.0f %s", value, suffix)
	}
	return fmt.Sprintf("%.1f %s", value, suffix)
}

// measureFor bounds how long sizes are added up: a directory may have millions of
// files, or be on a slow file system.
const measureFor = 3 * time.Second

// caches says what the data directory holds, and whether what could be fetched
// again is within its limit.
func (d *doctor) caches(ctx context.Context) verdict {
	dir, limits := d.Config.DataDir, d.Config.Cache.Limits()
	if _, err := os.Stat(dir); err != nil {
		return ok("nothing is kept yet; the limit is %s", limitText(limits.Most))
	}
	measuring, cancel := context.WithTimeout(ctx, measureFor)
	defer cancel()
	sizes, err := caches.Sizes(measuring, dir, nil)
	cached, text := tell(sizes, limits.Most)
	if err != nil {
		text = "at least " + text // too much to look at, or not ours to see
	}
	free, err := caches.FreeAt(dir)
	if err == nil {
		text += fmt.Sprintf("; %s free", size(uint64(free.Bytes)))
	}
	switch waiting := entries(filepath.Join(dir, "rejected")); {
	case waiting > 0:
		return warn("check what is in rejected/, which the database would not take, and remove it when it is of no more use",
			"files in rejected/ that wait for a person: %d. Kept: %s", waiting, text)
	case limits.Most > 0 && cached > limits.Most:
		return warn("the agent removes what was used longest ago, after a run or within the hour, and never what is in use or was used within cache.keep; raise cache.limit if it stays like this",
			"the caches are over their limit: %s", text)
	case err == nil && limits.Most > 0 && limits.Most-cached > free.Bytes:
		return warn("set cache.limit to less than the disk has room for, or give the data directory a larger one",
			"the disk is full before the caches reach their limit: %s", text)
	}
	return ok("%s", text)
}

// tell adds up what can be fetched again, and says what takes how much.
func tell(sizes map[string]int64, limit int64) (cached int64, text string) {
	var kept, others []string
	for _, kind := range caches.Kinds() {
		part := fmt.Sprintf("%s %s", kind, size(uint64(sizes[kind])))
		if caches.Fetched(kind) {
			cached += sizes[kind]
			kept = append(kept, part)
		} else {
			others = append(others, part)
		}
	}
	return cached, fmt.Sprintf("%s in caches (%s), limit %s; %s",
		size(uint64(cached)), strings.Join(kept, ", "), limitText(limit), strings.Join(others, ", "))
}

func limitText(limit int64) string {
	if limit == 0 {
		return "none"
	}
	return size(uint64(limit))
}

// entries is how many files a directory has that this process may look into.
func entries(dir string) int {
	names, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	return len(names)
}

// mostHeld is how many states are listed; the rest are counted.
const mostHeld = 10

// states lists the states that are nowhere but on this agent's disk: those on their way to
// the database, those that an engine could not store, and those that a person must decide
// about.
func (d *doctor) states(context.Context) verdict {
	waiting, unsaved, rejected, err := heldStates(d.Config.DataDir)
	held := slices.Concat(waiting, unsaved, rejected)
	shown := strings.Join(held[:min(len(held), mostHeld)], "; ")
	if more := len(held) - mostHeld; more > 0 {
		shown += fmt.Sprintf("; and %d more", more)
	}
	switch {
	case err != nil:
		return warn("run this as the user that the agent runs as", "what the agent keeps cannot be listed: %v", err)
	case len(rejected) > 0:
		return warn("compare each with the database's (trellis state versions), and bring in what is newer: docs/OPERATIONS.md, What the database refuses",
			"states that only this agent has: %s", shown)
	case len(unsaved) > 0:
		return warn("make the backend work again: the next run in the workspace stores it first. Keep this data directory until then", "states that only this agent has: %s", shown)
	case len(waiting) > 0 && d.agentRuns:
		return ok("on their way to the database: %s", shown)
	case len(waiting) > 0:
		return warn("start the agent: it stores them before anything else. Keep this data directory until then", "states that only this agent has: %s", shown)
	}
	return ok("every state is stored")
}

// heldStates names the states that a data directory has and that may be nowhere else.
func heldStates(dir string) (waiting, unsaved, rejected []string, err error) {
	walk := func(pattern string, add func(path string, info fs.FileInfo)) {
		paths, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are well formed
		for _, path := range paths {
			info, failed := os.Lstat(path)
			if errors.Is(failed, fs.ErrNotExist) {
				continue // stored just now
			}
			if failed != nil {
				err = failed
				continue
			}
			if info.Mode().IsRegular() && info.Size() > 0 {
				add(path, info)
			}
		}
	}
	about := func(info fs.FileInfo) string {
		return fmt.Sprintf("%s, since %s", size(uint64(info.Size())), info.ModTime().UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	for _, name := range []string{"spool", "rejected", "state"} {
		if _, failed := os.ReadDir(filepath.Join(dir, name)); failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			return nil, nil, nil, failed
		}
	}
	walk("spool/*.state[01]", func(path string, info fs.FileInfo) {
		waiting = append(waiting, fmt.Sprintf("%s (%s)", ofRun(strings.TrimSuffix(path, filepath.Ext(path))+".json"), about(info)))
	})
	walk(filepath.Join("state", "*", "errored*"), func(path string, info fs.FileInfo) {
		unsaved = append(unsaved, fmt.Sprintf("workspace %s (%s)", filepath.Base(filepath.Dir(path)), about(info)))
	})
	walk(filepath.Join("work", "*", job.UnsavedState), func(path string, info fs.FileInfo) {
		unsaved = append(unsaved, fmt.Sprintf("workspace %s (%s)", filepath.Base(filepath.Dir(path)), about(info)))
	})
	walk("rejected/*.state.age", func(path string, info fs.FileInfo) {
		rejected = append(rejected, fmt.Sprintf("%s (%s)", path, about(info)))
	})
	return waiting, unsaved, rejected, err
}

// ofRun names the run that a spool's description is of.
func ofRun(path string) string {
	var about struct {
		Number int64  `json:"number"`
		Name   string `json:"workspace_name"`
	}
	text, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(text, &about) != nil || about.Number == 0 {
		return "claim " + strings.TrimSuffix(filepath.Base(path), ".json")
	}
	return fmt.Sprintf("run #%d of workspace %q", about.Number, about.Name)
}

// identity says to which key people must seal for this agent to open it. The
// database says so as well, and nobody need believe it.
func (d *doctor) identity(context.Context) verdict {
	path, from := d.Config.IdentityFile, "identity_file"
	if path == "" {
		path, from = filepath.Join(d.Config.DataDir, "identity"), "the agent's own"
	}
	text, err := secretfile.Read(path)
	if d.Config.IdentityFile == "" && errors.Is(err, fs.ErrNotExist) {
		return ok("the agent makes a key at its first start, in %s", path)
	}
	if err != nil {
		return fail("correct identity_file, or let the agent's user read it and nobody else", "%s: %s %v", from, path, err)
	}
	identities, err := seal.ParseIdentities(path, text)
	if err != nil {
		return fail("restore the file from a backup; what was sealed to a key that is lost has to be sealed again", "%v", err)
	}
	var older []string
	for n := range identities[1:] {
		older = append(older, seal.Fingerprint(identities[n+1:].Public()))
	}
	also := ""
	if older != nil {
		also = "; it also opens what was sealed to " + strings.Join(older, ", ")
	}
	return ok("variables are sealed to %s, %s (%s)%s", seal.Fingerprint(identities.Public()), identities.Public(), from, also)
}

// health says whether the agent can open its port, and who reaches it then.
func (d *doctor) health(ctx context.Context) verdict {
	address := d.Config.Health.Listen
	if address == "" {
		return ok("health.listen is not set: the agent opens no port")
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && d.agentRuns:
		// By the agent, as a rule; it could not have started without it.
	case errors.Is(err, syscall.EADDRINUSE):
		return fail("name a free port in health.listen, or end what has this one", "health.listen: another program has %s; the agent would not start", address)
	case err != nil:
		return fail("correct health.listen", "health.listen: %s cannot be opened: %v", address, lastError(err))
	default:
		_ = listener.Close() // nobody has called
	}
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return d.open(address)
	}
	return ok("health and metrics are served at %s", address)
}

// open is about a port on all addresses. A pod has no other way to be asked.
func (d *doctor) open(address string) verdict {
	if slices.ContainsFunc(d.Environ, func(entry string) bool { return strings.HasPrefix(entry, "KUBERNETES_SERVICE_HOST=") }) {
		return ok("health and metrics are served at %s, to all who reach the pod; a NetworkPolicy says who does", address)
	}
	return warn("write 127.0.0.1 before the port in health.listen where who asks is on this machine, or let a firewall say who may",
		"health and metrics are served at %s, in the clear, to all who reach this machine; there is no secret in them", address)
}

// backends are those that Terraform and OpenTofu have, with what each needs to
// be told. What may come from the environment as well is not listed.
func backends() map[string][]string {
	return map[string][]string{
		"local": nil, job.Managed: nil, "http": {"address"}, "s3": {"bucket"}, "gcs": {"bucket"}, "azurerm": {"storage_account_name", "container_name"},
		"consul": nil, "kubernetes": nil, "pg": {"conn_str"}, "oss": {"bucket"}, "cos": {"bucket"},
	}
}

// backend says where states would be kept, and whether that can be.
func (d *doctor) backend(context.Context) verdict {
	state, known := d.Config.State, backends()
	names := slices.Sorted(maps.Keys(known))
	for _, name := range append(slices.Sorted(maps.Keys(state.Config)), state.Backend) {
		if _, is := known[name]; name != "" && !is {
			return fail("use one of "+strings.Join(names, ", "), "Terraform has no backend %q", name)
		}
	}
	if forced := state.Backend; forced != "" {
		for _, argument := range known[forced] {
			if state.Config[forced][argument] == "" {
				return fail(fmt.Sprintf("set it in [state.config.%s]", forced), "the %s backend needs %s, and every template uses that backend here", forced, argument)
			}
		}
	}
	settings := d.Config.Settings().State
	for _, name := range slices.Compact(slices.Sorted(func(yield func(string) bool) {
		for name := range state.Config {
			if !yield(name) {
				return
			}
		}
		if state.Backend != "" {
			yield(state.Backend)
		}
	})) {
		if err := executor.CheckState(name, settings); err != nil {
			return fail("see the message", "%v", err)
		}
	}
	if settings.MayBeManaged() {
		return ok("states are kept in the database, sealed to the cluster's key%s",
			map[bool]string{true: ", whatever a template declares", false: " where a template declares no backend"}[state.Backend != ""])
	}
	if state.Backend != "" && state.Backend != "local" {
		return ok("every template keeps its state in the %s backend", state.Backend)
	}
	return d.localState()
}

// localState judges the directory that states lie in where a template does not
// say otherwise.
func (d *doctor) localState() verdict {
	dir := existing(d.Config.DataDir)
	if kind := passing(dir); kind != "" {
		return warn("let data_dir be on a disk that stays (a volume), or set state.backend",
			"states of templates without a backend are files in %s, on %s: they would be lost with the container or the machine's next start", dir, kind)
	}
	return ok("states of templates without a backend of their own are files in %s, and belong to this agent", d.Config.DataDir)
}

// passing says what keeps a directory no longer than a container or a machine
// runs; "" for what stays.
func passing(dir string) string {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil {
		return ""
	}
	switch int64(s.Type) { //nolint:unconvert // its type differs between architectures
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return "a file system in memory"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "the container's own layer"
	}
	return ""
}
