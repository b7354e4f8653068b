package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/retry"
)

// making is one Create on its way.
type making struct {
	*Driver
	spec     pool.Spec
	settings settings
	progress pool.Progress
	ref      pool.Ref
}

// Create makes a machine, or goes on with the making of one that bears the mark already.
func (d *Driver) Create(ctx context.Context, spec pool.Spec, progress pool.Progress) (pool.Found, error) {
	if spec.Init.Password != "" {
		progress.Secret(spec.Init.Password)
	}
	m := &making{Driver: d, spec: spec, progress: progress, ref: pool.Ref{ID: spec.ID, Name: spec.Name, Node: spec.Node}}
	if spec.VMID != 0 {
		m.ref.ExternalID = strconv.Itoa(spec.VMID)
	}
	if err := m.check(); err != nil {
		return pool.Found{}, err
	}
	g, err := m.steps(ctx)
	var f pool.Found
	if g != nil {
		// Of what exists is told, also after the caller gave up.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.client.timeout)
		defer cancel()
		if again, readErr := d.read(late, g.node, g.id); readErr == nil && again.marked(spec.ID) {
			g = again
		}
		f = d.found(late, g, spec.Address)
	}
	if err != nil {
		return f, d.advised(fmt.Errorf("making machine %s: %w", spec.Name, err))
	}
	return f, nil
}

// check refuses what can't come true, before anything is done.
func (m *making) check() error {
	var err error
	if m.settings, err = parse(m.spec.Settings); err != nil {
		return err
	}
	if err := m.allowed(m.settings); err != nil {
		return err
	}
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("machine %s: %s", clean(m.spec.Name), fmt.Sprintf(format, args...))
	}
	switch s := m.spec; {
	case !ids.MatchString(s.ID):
		return wrong("%q is no machine's id", clean(s.ID))
	case !names.MatchString(s.Name):
		return wrong("its name must be a DNS name: letters, digits, - and dots, at most 63 characters")
	case s.Node != "" && !nodeNames.MatchString(s.Node):
		return wrong("%q is no node's name", clean(s.Node))
	case s.Node != "" && !m.usable(s.Node):
		return wrong("pool %s does not let machines be on node %s", m.config.Name, s.Node)
	case s.VMID != 0 && (s.VMID < 100 || s.VMID > 999999999):
		return wrong("VMID %d is none: they are 100 to 999999999", s.VMID)
	case s.Image == "":
		return wrong("no image is named")
	case s.Cores < 0 || s.Cores > 8192 || s.Memory < 0 || s.Memory > 64<<20 || s.Disk < 0 || s.Disk > 1<<20:
		return wrong("its cores, memory or disk are out of range")
	case s.Init.UserData != "" && m.settings.CICustom == "":
		return wrong("Proxmox takes user_data only from a file on its nodes; put it into a snippet that the pool allows (snippets in [[pools]]) and name that in proxmox { cicustom = \"user=local:snippets/FILE\" }, or leave user_data out and use user, password and ssh_keys")
	case s.Init.UserData != "":
		return wrong("it has user_data and proxmox { cicustom }; Proxmox takes one of them, so leave user_data out")
	case s.Init.Keys != nil && strings.Contains(","+m.settings.CICustom, ",user="):
		return wrong("proxmox { cicustom = \"user=…\" } replaces the document by which the machine would get the key for commands over SSH (after); leave it out, or write by = \"agent\"")
	case s.Init.Wait != "" && s.Init.Wait != "address" && s.Init.Wait != "agent" && s.Init.Wait != "none":
		return wrong("wait %q must be address, agent or none", clean(s.Init.Wait))
	case (s.Init.Wait == "address" || s.Init.Wait == "agent") && !yes(m.settings.Agent, true):
		return wrong("it waits for %s, which the guest's agent tells, and proxmox { agent = false } switches that off", s.Init.Wait)
	}
	return nil
}

var names = lazyregexp.New(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)

// steps are those of a machine's making. The machine is returned also with an error.
func (m *making) steps(ctx context.Context) (*guest, error) {
	m.progress.Step("find", "Looking for the machine", 0)
	g, err := m.exist(ctx)
	if err != nil {
		return g, err
	}
	_, state := marks(g.config["description"])
	if state == creating {
		for _, do := range []func(context.Context, *guest) (*guest, error){m.configure, m.grow} {
			next, err := do(ctx, g)
			if next != nil {
				g = next
			}
			if err != nil {
				return g, err
			}
		}
	}
	if yes(m.settings.Start, true) {
		if err := m.start(ctx, g, step{id: "start", label: "Starting the machine", from: 75, to: 85, limit: m.limits.start}, m.progress); err != nil {
			return g, err
		}
		if err := m.wait(ctx, g); err != nil {
			return g, err
		}
	}
	if state != creating {
		return g, nil
	}
	return m.finish(ctx, g)
}

// exist finds the machine, or clones it.
func (m *making) exist(ctx context.Context) (*guest, error) {
	s := step{id: "clone", label: "Cloning the image", from: 5, to: 60, limit: m.limits.clone}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, errStepTime)
	defer cancel()
	full := m.settings.FullClone
	waits := retry.Between(m.client.scaled(time.Second), m.client.scaled(15*time.Second))
	var from *image
	var last error
	for tries := 1; tries <= 2*mostTries; tries++ {
		if m.spec.VMID == 0 {
			if err := m.settle(ctx); err != nil {
				return nil, err
			}
		}
		g, err := m.find(ctx, m.ref)
		switch {
		case err == nil:
			g, err = m.unlocked(ctx, g, s)
			if err != nil || g != nil {
				return g, err
			}
			m.progress.Log("the clone that was going on has failed; cloning again")
			continue
		case !errors.Is(err, pool.ErrGone):
			return nil, err
		}
		if from == nil {
			if from, err = m.image(ctx); err != nil {
				return nil, err
			}
			s.begin(m.progress)
		}
		var id int
		var upid string
		if id, upid, last = m.clone(ctx, from, full); last == nil {
			if last = m.follow(ctx, upid, s, m.progress); last == nil {
				return m.mine(ctx, from.target, id)
			}
		}
		var lost *lostError
		switch {
		case says(last, "Linked clone feature is not supported") && !full:
			m.progress.Log("storage %s can't make linked clones; making a full one", from.disk.storage)
			full = true
			continue
		case says(last, "config file already exists"), says(last, fmt.Sprintf("lock-%d.conf", id)):
			if m.spec.VMID != 0 {
				if err := m.foreign(ctx, from.target, id); err != nil {
					return nil, err
				}
			}
		case errors.As(last, &lost), transient(last), passes(last):
			m.progress.Log("%s: %s; looking for what was done", s.label, clean(last.Error()))
		default:
			return nil, last
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			return nil, fmt.Errorf("%s: %w (%w)", s.label, last, context.Cause(ctx))
		}
	}
	return nil, last
}

// foreign returns ErrForeign if what has the VMID bears another mark or none.
func (m *making) foreign(ctx context.Context, node string, id int) error {
	g, err := m.read(ctx, node, id)
	var lost *lostError
	switch {
	case err == nil && g.marked(m.spec.ID):
		return nil
	case missing(err), errors.As(err, &lost):
		if m.settleClone(ctx, node, id) {
			return nil
		}
	}
	// On another node, or not to be seen by the token: nextid answers for the whole cluster.
	var free string
	if m.client.get(ctx, "/cluster/nextid", url.Values{"vmid": {strconv.Itoa(id)}}, &free) == nil {
		return nil
	}
	if rows, err := m.everywhere(ctx); err == nil {
		for _, r := range rows {
			if int(r.VMID) == id {
				if g, err := m.read(ctx, r.Node, id); err == nil && g.marked(m.spec.ID) {
					return nil
				}
			}
		}
	}
	return fmt.Errorf("VMID %d belongs to %w; keep others out of the pool's range of VMIDs (vmids in [[pools]]), or remove that machine, and deploy again", id, pool.ErrForeign)
}

var cloneOf = lazyregexp.New(`^creating a clone of VM \d+ with ID (\d+)$`)

// settleClone reports whether a clone with that VMID as its target is going on.
func (m *making) settleClone(ctx context.Context, node string, id int) bool {
	targets, _, err := m.cloning(ctx, node)
	return err == nil && slices.Contains(targets, id)
}

// cloning lists the targets of the token's clones that run on a node; open is how many are too
// young to have said theirs.
func (d *Driver) cloning(ctx context.Context, node string) (targets []int, open int, err error) {
	var running []struct {
		UPID string `json:"upid"`
	}
	if err := d.client.get(ctx, "/nodes/"+node+"/tasks", url.Values{"source": {"active"}, "typefilter": {"qmclone"}}, &running); err != nil {
		return nil, 0, err
	}
	for _, t := range running {
		if !upids.MatchString(t.UPID) {
			continue
		}
		var lines []struct {
			T string `json:"t"`
		}
		if err := d.client.get(ctx, "/nodes/"+node+"/tasks/"+url.PathEscape(t.UPID)+"/log", url.Values{"limit": {"20"}}, &lines); err != nil {
			return nil, 0, err
		}
		said := false
		for _, l := range lines {
			if match := cloneOf.FindStringSubmatch(l.T); match != nil {
				id, _ := strconv.Atoi(match[1])
				targets, said = append(targets, id), true
			}
		}
		if !said {
			open++
		}
	}
	return targets, open, nil
}

// settle waits until each clone that runs is so far that its target exists. Without a VMID
// nothing else keeps a clone whose answer was lost from being made twice.
func (m *making) settle(ctx context.Context) error {
	nodes, err := m.nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		for tries := 0; n.Status == "online" && tries < 10; tries++ {
			_, open, err := m.cloning(ctx, n.Node)
			if err != nil {
				return err
			}
			if open == 0 {
				break
			}
			if !retry.Sleep(ctx, m.client.scaled(500*time.Millisecond)) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// mine reads a machine that must bear the mark.
func (m *making) mine(ctx context.Context, node string, id int) (*guest, error) {
	g, err := m.read(ctx, node, id)
	if err != nil {
		return nil, fmt.Errorf("reading VM %d: %w", id, err)
	}
	if !g.marked(m.spec.ID) {
		return nil, fmt.Errorf("%s: %w", g, pool.ErrForeign)
	}
	return g, nil
}

// unlocked waits until a machine that is still being cloned is complete. nil: its clone failed.
func (m *making) unlocked(ctx context.Context, g *guest, s step) (*guest, error) {
	told := false
	for {
		if lock := g.config["lock"]; lock != "clone" && lock != "create" {
			return g, nil
		}
		if !told {
			told = true
			s.begin(m.progress)
			m.progress.Log("%s bears the mark and is being cloned; waiting for that", g)
		}
		if !retry.Sleep(ctx, m.client.scaled(2*time.Second)) {
			if !errors.Is(context.Cause(ctx), errStepTime) {
				return g, fmt.Errorf("%s: %w", s.label, context.Cause(ctx))
			}
			return g, fmt.Errorf("%s: %s is locked (%s) after %s; if no task of it runs on the node, an interrupted clone left it: run qm unlock %d and qm destroy %d there, and deploy again: %w", s.label, g, g.config["lock"], s.limit, g.id, g.id, context.Cause(ctx))
		}
		again, err := m.read(ctx, g.node, g.id)
		switch {
		case missing(err), err == nil && !again.marked(m.spec.ID):
			return nil, nil // there is none
		case err != nil:
			return g, err
		}
		g = again
	}
}

// image is what a machine is cloned from.
type image struct {
	*guest
	disk   drive
	target string // the node of the clone
}

// image finds the template on the machine's node, or on another with shared storage.
func (m *making) image(ctx context.Context) (*image, error) {
	nodes, err := m.nodes(ctx)
	if err != nil {
		return nil, err
	}
	var order, known []string
	if m.spec.Node != "" {
		order = append(order, m.spec.Node)
	}
	for _, n := range nodes {
		if n.Status == "online" && n.Node != m.spec.Node {
			order = append(order, n.Node)
		} else if n.Status != "online" && n.Node == m.spec.Node {
			return nil, fmt.Errorf("node %s is offline: %w", n.Node, pool.ErrUnreachable)
		}
	}
	if m.spec.Node == "" && len(m.config.Nodes) > 0 {
		order = slices.DeleteFunc(slices.Clone(m.config.Nodes), func(n string) bool { return !slices.Contains(order, n) })
	}
	var local []string
	for _, node := range order {
		rows, err := m.machinesOf(ctx, node)
		if err != nil {
			return nil, err
		}
		var matches []machineRow
		for _, r := range rows {
			if r.Template == 1 {
				known = append(known, r.Name)
				if r.Name == m.spec.Image || strconv.Itoa(int(r.VMID)) == m.spec.Image {
					matches = append(matches, r)
				}
			}
		}
		if len(matches) > 1 {
			return nil, fmt.Errorf("node %s has several templates with the name %q (VM %d and %d); rename one, or name the image by its number", node, m.spec.Image, int(matches[0].VMID), int(matches[1].VMID))
		}
		if len(matches) == 0 {
			continue
		}
		g, err := m.read(ctx, node, int(matches[0].VMID))
		if err != nil {
			return nil, fmt.Errorf("reading image %q: %w", m.spec.Image, err)
		}
		img := &image{guest: g, target: node}
		var ok bool
		if img.disk, ok = g.disk(); !ok {
			return nil, fmt.Errorf("image %q (%s) has no disk", m.spec.Image, g)
		}
		if m.spec.Node != "" && node != m.spec.Node {
			shared, err := m.shared(ctx, g)
			if err != nil {
				return nil, err
			}
			if !shared {
				local = append(local, node)
				continue
			}
			img.target = m.spec.Node
		}
		return img, m.fits(img)
	}
	if len(local) > 0 {
		return nil, fmt.Errorf("image %q is on node %s only, on a storage that node %s does not see; make the template on %s too, or put its disk on shared storage", m.spec.Image, strings.Join(local, " and "), m.spec.Node, m.spec.Node)
	}
	slices.Sort(known)
	return nil, fmt.Errorf("there is no template %q on the nodes that the token sees%s", m.spec.Image, provision.DidYouMean(m.spec.Image, slices.Compact(known)))
}

// fits checks what a machine wants against the image.
func (m *making) fits(img *image) error {
	asks := m.spec.Init.User != "" || m.spec.Init.Password != "" || len(m.spec.Init.Authorized()) > 0 || m.spec.Address.IsValid() || m.settings.CICustom != ""
	if asks && !img.cloudInit() {
		return fmt.Errorf("image %q has no cloud-init drive, so the machine can't be told its user, keys or address; give it one: qm set %d --ide2 %s:cloudinit", m.spec.Image, img.id, img.disk.storage)
	}
	if want := int64(m.spec.Disk) << 30; want > 0 && want < img.disk.bytes {
		return fmt.Errorf("the disk of image %q has %s, and a disk can't be made smaller; ask for at least that", m.spec.Image, fields(img.config[img.disk.key])["size"])
	}
	if wait := m.spec.Init.Wait; (wait == "address" || wait == "agent") && !img.agent() && m.settings.Agent == nil {
		return fmt.Errorf("it waits for %s, which the guest's agent tells, and image %q has none configured: install qemu-guest-agent there and run qm set %d --agent 1, or set wait = \"none\"", wait, m.spec.Image, img.id)
	}
	return nil
}

// shared reports whether all of a machine's disks are on storages that all nodes see.
func (d *Driver) shared(ctx context.Context, g *guest) (bool, error) {
	all, err := d.storagesOf(ctx, g.node)
	if err != nil {
		return false, err
	}
	for key, v := range g.config {
		f := fields(v)
		name, _, ok := strings.Cut(f[""], ":")
		if !bus(key) || !ok {
			continue
		}
		if !slices.ContainsFunc(all, func(s storageRow) bool { return s.Storage == name && s.Shared == 1 }) {
			return false, nil
		}
	}
	return true, nil
}

// clone asks for the clone, once.
func (m *making) clone(ctx context.Context, from *image, full bool) (int, string, error) {
	id := m.spec.VMID
	if id == 0 {
		var next number
		if err := m.client.get(ctx, "/cluster/nextid", nil, &next); err != nil {
			return 0, "", err
		}
		if id = int(next); id < 100 || id > 999999999 {
			return 0, "", fmt.Errorf("the next free VMID is %v, as Proxmox says, which is none", float64(next))
		}
	}
	params := url.Values{"newid": {strconv.Itoa(id)}, "name": {m.spec.Name}, "description": {describe(m.spec, creating)}}
	if from.target != from.node {
		params.Set("target", from.target)
	}
	if p := m.settings.ResourcePool; p != "" {
		params.Set("pool", p)
	} else if m.config.ResourcePool != "" {
		params.Set("pool", m.config.ResourcePool)
	}
	onto := m.settings.Storage
	if onto == "" && len(m.config.Storages) > 0 && !slices.Contains(m.config.Storages, from.disk.storage) {
		onto = m.config.Storages[0]
	}
	if onto == from.disk.storage && !full {
		onto = ""
	}
	if onto != "" {
		if !full {
			m.progress.Log("the image is on storage %s and the machine is to be on %s; making a full clone", from.disk.storage, onto)
		}
		full = true
		params.Set("storage", onto)
	}
	params.Set("full", "0")
	if full {
		params.Set("full", "1")
	}
	var upid string
	_, err := m.client.once(ctx, http.MethodPost, from.path()+"/clone", params, &upid)
	return id, upid, err
}

// configure writes what the machine should be, unless it is so already.
func (m *making) configure(ctx context.Context, g *guest) (*guest, error) {
	m.progress.Step("configure", "Configuring the machine", 62)
	return m.change(ctx, g, m.limits.change, func(g *guest) url.Values { return m.wanted(g) })
}

// change changes a configuration together with the digest of the one that bore the mark.
func (m *making) change(ctx context.Context, g *guest, limit time.Duration, wanted func(*guest) url.Values) (*guest, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errStepTime)
	defer cancel()
	waits := retry.Between(m.client.scaled(500*time.Millisecond), m.client.scaled(8*time.Second))
	var last error
	for range mostTries {
		again, err := m.mine(ctx, g.node, g.id)
		if err != nil {
			return g, err
		}
		g = again
		params := wanted(g)
		if len(params) == 0 {
			return g, nil
		}
		params.Set("digest", g.config["digest"])
		_, last = m.client.once(ctx, http.MethodPut, g.path()+"/config", params, nil)
		if last == nil {
			return m.mine(ctx, g.node, g.id)
		}
		if !transient(last) && !says(last, "checksum mismatch") {
			break
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			break
		}
	}
	return g, fmt.Errorf("configuring %s: %w", g, last)
}

// wanted is what of a configuration is not as it should be.
func (m *making) wanted(g *guest) url.Values {
	out := url.Values{}
	set := func(key, value string) {
		if g.config[key] != value {
			out.Set(key, value)
		}
	}
	s := m.spec
	set("name", s.Name)
	if s.Cores > 0 && g.cores() != s.Cores {
		set("cores", strconv.Itoa(s.Cores))
		if g.count("sockets", 1) != 1 {
			out.Set("sockets", "1")
		}
	}
	if s.Memory > 0 && g.memory() != s.Memory {
		out.Set("memory", strconv.Itoa(s.Memory))
	}
	if m.settings.CPU != "" {
		set("cpu", m.settings.CPU)
	}
	if b := m.settings.OnBoot; b != nil {
		set("onboot", map[bool]string{true: "1", false: "0"}[*b])
	}
	if b := m.settings.Agent; b != nil && *b != g.agent() {
		set("agent", map[bool]string{true: "1", false: "0"}[*b])
	}
	set("tags", m.tags(g))
	if net := m.card(g); net != "" {
		set("net0", net)
	}
	if g.cloudInit() {
		m.cloudInitKeys(g, set, out)
	}
	return out
}

// tags are the image's, the template's and Tendril's.
func (m *making) tags(g *guest) string {
	all := append(strings.FieldsFunc(strings.ToLower(g.config["tags"]), func(r rune) bool { return r == ';' || r == ',' || r == ' ' }), tagged)
	all = append(all, m.settings.Tags...)
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ";")
}

// card is the value of net0, or "" where the image's stays.
func (m *making) card(g *guest) string {
	bridge := m.settings.Bridge
	have := fields(g.config["net0"])
	if bridge == "" && len(m.config.Networks) > 0 && !slices.Contains(m.config.Networks, have["bridge"]) {
		bridge = m.config.Networks[0]
	}
	if bridge == "" && m.settings.VLAN == 0 {
		return ""
	}
	if bridge == "" {
		bridge = have["bridge"]
	}
	parts := strings.Split(g.config["net0"], ",")
	if g.config["net0"] == "" {
		parts = []string{"virtio"}
	}
	parts = slices.DeleteFunc(parts, func(p string) bool {
		return strings.HasPrefix(p, "bridge=") || m.settings.VLAN != 0 && strings.HasPrefix(p, "tag=")
	})
	parts = append(parts, "bridge="+bridge)
	if m.settings.VLAN != 0 {
		parts = append(parts, "tag="+strconv.Itoa(m.settings.VLAN))
	}
	next := strings.Join(parts, ",")
	if sameParts(next, g.config["net0"]) {
		return g.config["net0"]
	}
	return next
}

func sameParts(a, b string) bool {
	x, y := strings.Split(a, ","), strings.Split(b, ",")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

func (m *making) cloudInitKeys(g *guest, set func(key, value string), out url.Values) {
	s := m.spec
	if s.Init.User != "" {
		set("ciuser", s.Init.User)
	}
	if s.Init.Password != "" {
		out.Set("cipassword", s.Init.Password) // what is there is shown as stars
	}
	if keys := s.Init.Authorized(); len(keys) > 0 {
		set("sshkeys", encodeKeys(keys))
	}
	set("ipconfig0", addressing(s))
	if len(s.Nameservers) > 0 {
		var all []string
		for _, a := range s.Nameservers {
			all = append(all, a.String())
		}
		set("nameserver", strings.Join(all, " "))
	}
	if m.settings.SearchDomain != "" {
		set("searchdomain", m.settings.SearchDomain)
	}
	if m.settings.CICustom != "" {
		set("cicustom", m.settings.CICustom)
	}
}

// encodeKeys writes SSH keys as Proxmox wants them: percent-encoded, before the form is.
func encodeKeys(keys []string) string {
	var lines []string
	for _, k := range keys {
		lines = append(lines, strings.Join(strings.Fields(k), " "))
	}
	return strings.ReplaceAll(url.QueryEscape(strings.Join(lines, "\n")), "+", "%20")
}

// addressing is the value of ipconfig0.
func addressing(s pool.Spec) string {
	if !s.Address.IsValid() {
		return "ip=dhcp"
	}
	ip, gw := "ip", "gw"
	if s.Address.Addr().Is6() {
		ip, gw = "ip6", "gw6"
	}
	out := ip + "=" + s.Address.String()
	if s.Gateway.IsValid() && s.Gateway.Is4() == s.Address.Addr().Is4() {
		out += "," + gw + "=" + s.Gateway.String()
	}
	return out
}

// grow makes the disk as large as it should be.
func (m *making) grow(ctx context.Context, g *guest) (*guest, error) {
	want := int64(m.spec.Disk) << 30
	disk, ok := g.disk()
	if want == 0 || !ok || disk.bytes >= want {
		return g, nil
	}
	s := step{id: "resize", label: "Growing the disk", from: 66, to: 74, limit: m.limits.resize}
	s.begin(m.progress)
	err := m.converge(ctx, s, m.progress, func(ctx context.Context) (bool, error) {
		again, err := m.mine(ctx, g.node, g.id)
		if err != nil {
			return false, err
		}
		g = again
		disk, _ = g.disk()
		return disk.bytes >= want, nil
	}, func(ctx context.Context) (string, error) {
		var upid string
		_, err := m.client.once(ctx, http.MethodPut, g.path()+"/resize", url.Values{"disk": {disk.key}, "size": {strconv.Itoa(m.spec.Disk) + "G"}, "digest": {g.config["digest"]}}, &upid)
		return upid, err
	})
	return g, err
}

// wait waits for the guest's agent, or its address, as the machine's settings say.
func (m *making) wait(ctx context.Context, g *guest) error {
	what := m.spec.Init.Wait
	if what == "" {
		what = "none"
		if !m.spec.Address.IsValid() {
			what = "address"
		}
	}
	if what == "none" || !yes(m.settings.Agent, true) {
		return nil
	}
	if again, err := m.read(ctx, g.node, g.id); err == nil && !again.agent() {
		m.progress.Log("image %q has no guest agent configured, so the machine's address is not known; install qemu-guest-agent there and run qm set on it with --agent 1", m.spec.Image)
		return nil
	}
	s := step{id: "address", label: "Waiting for the guest", from: 86, to: 97, limit: m.limits.agent}
	s.begin(m.progress)
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, errStepTime)
	defer cancel()
	waits := retry.Between(m.client.scaled(time.Second), m.client.scaled(5*time.Second))
	said := "nothing"
	for {
		var err error
		var addresses []netip.Addr
		if what == "agent" {
			_, err = m.client.once(ctx, http.MethodPost, g.path()+"/agent/ping", nil, nil)
		} else {
			addresses, err = m.reported(ctx, g)
		}
		switch {
		case err == nil && what == "agent":
			return nil
		case err == nil && (!m.spec.Address.IsValid() && len(addresses) > 0 || m.spec.Address.IsValid() && slices.Contains(addresses, m.spec.Address.Addr())):
			return nil
		case err == nil:
			said = "that it has no address that others can reach"
		case status(err, http.StatusForbidden), says(err, "No QEMU guest agent configured"), missing(err):
			return fmt.Errorf("%s: %w", s.label, err)
		case ctx.Err() == nil:
			said = clean(err.Error())
		}
		if !retry.Sleep(ctx, waits.NextBackOff()) {
			return fmt.Errorf("%s: after %s its agent said %s; check its console: is qemu-guest-agent installed and running, is there a DHCP server on its bridge? (%w)", s.label, s.limit, said, context.Cause(ctx))
		}
	}
}

// finish marks the machine as complete.
func (m *making) finish(ctx context.Context, g *guest) (*guest, error) {
	m.progress.Step("ready", "Completing the machine", 98)
	return m.restate(ctx, g, ready)
}
