package pvesim

import (
	"slices"
	"strings"
)

// Token is one of a user. Its ID is USER@REALM!NAME.
type Token struct {
	ID, Secret string
	// Separate says that it may only what both it and its user were given.
	Separate bool
	Expired  bool
}

// grant is one line of the access control list.
type grant struct {
	who, path, role string
	alone           bool // at the path, and not below it
}

// privileges are what there is to give.
var privileges = strings.Fields(`Datastore.Allocate Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit
	Group.Allocate Mapping.Audit Mapping.Modify Mapping.Use Permissions.Modify Pool.Allocate Pool.Audit Realm.Allocate Realm.AllocateUser
	SDN.Allocate SDN.Audit SDN.Use Sys.AccessNetwork Sys.Audit Sys.Console Sys.Incoming Sys.Modify Sys.PowerMgmt Sys.Syslog User.Modify
	VM.Allocate VM.Audit VM.Backup VM.Clone VM.Config.CDROM VM.Config.CPU VM.Config.Cloudinit VM.Config.Disk VM.Config.HWType
	VM.Config.Memory VM.Config.Network VM.Config.Options VM.Console VM.GuestAgent.Audit VM.GuestAgent.FileRead VM.GuestAgent.FileSystemMgmt
	VM.GuestAgent.FileWrite VM.GuestAgent.Unrestricted VM.Migrate VM.PowerMgmt VM.Replicate VM.Snapshot VM.Snapshot.Rollback`)

// role is the privileges of a role: one that Proxmox brings, or a list of privileges as it stands.
func role(name string) []string {
	only := func(keep func(string) bool) []string {
		return slices.DeleteFunc(slices.Clone(privileges), func(p string) bool { return !keep(p) })
	}
	switch name {
	case "Administrator":
		return privileges
	case "PVEAdmin":
		return only(func(p string) bool {
			return !slices.Contains([]string{"Permissions.Modify", "Realm.Allocate", "Mapping.Modify", "Sys.Modify", "Sys.PowerMgmt", "Sys.AccessNetwork", "Sys.Incoming"}, p)
		})
	case "PVEVMAdmin":
		return only(func(p string) bool { return strings.HasPrefix(p, "VM.") })
	case "PVEVMUser":
		return []string{"VM.Audit", "VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.GuestAgent.Audit", "VM.PowerMgmt"}
	case "PVEAuditor":
		return only(func(p string) bool { return strings.HasSuffix(p, ".Audit") })
	case "PVEDatastoreUser":
		return []string{"Datastore.AllocateSpace", "Datastore.Audit"}
	case "PVEPoolUser":
		return []string{"Pool.Audit"}
	case "PVESDNUser":
		return []string{"SDN.Audit", "SDN.Use"}
	}
	return strings.FieldsFunc(name, func(r rune) bool { return r == ',' || r == ' ' })
}

// AddUser makes a user, such as ci@pve.
func (s *Server) AddUser(id string, enabled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[id] = enabled
}

// AddToken makes a token, and its user where there is none.
func (s *Server) AddToken(t Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	user, _, _ := strings.Cut(t.ID, "!")
	if _, ok := s.users[user]; !ok {
		s.users[user] = true
	}
	s.tokens[t.ID] = &t
}

// Grant gives a user or token a role, or privileges with commas between them, at path and below.
func (s *Server) Grant(who, path, role string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants = append(s.grants, grant{who: who, path: path, role: role})
}

// GrantAt gives what Grant gives, at path alone: it does not propagate.
func (s *Server) GrantAt(who, path, role string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants = append(s.grants, grant{who: who, path: path, role: role, alone: true})
}

// Revoke takes away what was granted to who at path.
func (s *Server) Revoke(who, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants = slices.DeleteFunc(s.grants, func(g grant) bool { return g.who == who && g.path == path })
}

// authenticate finds who calls; otherwise it says what 401 says.
func (c *call) authenticate() (string, bool) {
	header := c.request.Header.Get("Authorization")
	if strings.Join(c.path, "/") == "access/domains" {
		return "", true
	}
	scheme, rest, _ := strings.Cut(header, "PVEAPIToken")
	if header == "" || scheme != "" || rest == header {
		if _, err := c.request.Cookie("PVEAuthCookie"); err == nil {
			return "Authentication failed!", false
		}
		return "No ticket", false
	}
	id, secret, ok := strings.Cut(strings.TrimLeft(rest, "= "), "=")
	token := c.s.tokens[id]
	user, _, _ := strings.Cut(id, "!")
	if !ok || token == nil || token.Secret != secret || token.Expired || !c.s.users[user] {
		return "Authentication failed!", false
	}
	c.user = id
	return "", true
}

// granted are the privileges that who has at path, each with whether it propagates.
func (s *Server) granted(who, path string) map[string]bool {
	if who == "root@pam" {
		out := map[string]bool{}
		for _, p := range privileges {
			out[p] = true
		}
		return out
	}
	if user, _, isToken := strings.Cut(who, "!"); isToken {
		theirs := s.granted(user, path)
		if t := s.tokens[who]; t == nil || !t.Separate {
			return theirs
		}
		out := map[string]bool{}
		for p, propagates := range s.listed(who, path) {
			if below, ok := theirs[p]; ok {
				out[p] = propagates && below
			}
		}
		return out
	}
	return s.listed(who, path)
}

// listed is what the list says of who at path: the entry nearest to it, and the pool's.
func (s *Server) listed(who, path string) map[string]bool {
	all := map[string]bool{}
	add := func(p string) bool {
		found := false
		for _, g := range s.grants {
			if g.who == who && g.path == p && (!g.alone || p == path) {
				found = true
				for _, name := range role(g.role) {
					all[name] = all[name] || !g.alone
				}
			}
		}
		return found
	}
	for p := path; ; {
		if add(p) || p == "/" {
			break
		}
		if p = p[:strings.LastIndex(p, "/")]; p == "" {
			p = "/"
		}
	}
	if id, ok := strings.CutPrefix(path, "/vms/"); ok {
		for name, pool := range s.pools {
			if pool.has(id) {
				add("/pool/" + name)
			}
		}
	}
	return all
}

// may reports whether the caller has one of the privileges at path.
func (c *call) may(path string, any ...string) bool {
	have := c.s.granted(c.user, path)
	return slices.ContainsFunc(any, func(p string) bool { _, ok := have[p]; return ok })
}

// need refuses a caller who has none of the privileges at path.
func (c *call) need(path string, any ...string) error {
	if c.may(path, any...) {
		return nil
	}
	return refused("%s, %s", path, strings.Join(any, "|"))
}

// onMachine is the usual condition of a method of a machine.
func onMachine(any ...string) func(*call) error {
	return func(c *call) error { return c.need("/vms/"+c.params["vmid"], any...) }
}

func (c *call) permissions() (any, error) {
	out := map[string]any{}
	paths := []string{"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"}
	for _, g := range c.s.grants {
		paths = append(paths, g.path)
	}
	for name, p := range c.s.pools {
		paths = append(paths, "/pool/"+name)
		for _, id := range p.members {
			paths = append(paths, "/vms/"+id)
		}
	}
	if one := c.params["path"]; one != "" {
		paths = []string{one}
	}
	for _, p := range paths {
		have := map[string]any{}
		for name, propagates := range c.s.granted(c.user, p) {
			have[name] = 0
			if propagates {
				have[name] = 1
			}
		}
		if len(have) > 0 {
			out[p] = have
		}
	}
	return out, nil
}
