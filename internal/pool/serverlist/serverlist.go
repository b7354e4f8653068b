// Package serverlist reads lists of bare-metal servers that are to be enrolled: what the BMC of each
// is, and what is to be known of the server.
//
//	CSV ──Read──► []Server ──► trellis pools enroll ──► a template's variables
//	                            a template's block ironic { enroll = { … } } ──► pool/ironic
//
// Both ways have the same fields and the same rules, which Server.Check has. A password is a secret:
// no error quotes a cell.
//
// It must not know Ironic's API, templates or runs.
package serverlist

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tendril-run/tendril/internal/lazyregexp"
	"github.com/tendril-run/tendril/internal/printable"
	"github.com/tendril-run/tendril/internal/provision"
)

// Server is one to be enrolled: a BMC, and what is to be known of what it manages. Its JSON is that
// of a template.
type Server struct {
	// Name is by what the server is known again. In a template it is the machine's.
	Name string `json:"-"`
	// Driver is the hardware type: redfish, ipmi, or another that Ironic has.
	Driver string `json:"driver,omitempty"`
	// Address is the BMC's, for Redfish with https:// (which may be left out); User and Password
	// sign in there. Password is a secret.
	Address  string `json:"address,omitempty"`
	User     string `json:"user,omitempty"`
	Password string `json:"-"`
	// System is the path of the Redfish system where a BMC has several, such as /redfish/v1/Systems/1.
	System string `json:"system,omitempty"`
	// VerifyCA is the file on the conductor with the authority of the BMC's certificate; "false": it
	// is not checked; "": by the conductor's own.
	VerifyCA string `json:"verify_ca,omitempty"`
	// MACs are the addresses of its ports.
	MACs []string `json:"macs,omitempty"`
	// ResourceClass and Traits are by what it is chosen.
	ResourceClass string   `json:"resource_class,omitempty"`
	Traits        []string `json:"traits,omitempty"`
	// Cores, Memory (MiB) and Disk (GiB) are its properties; 0: inspection says them, or nobody.
	Cores  int `json:"cores,omitempty"`
	Memory int `json:"memory,omitempty"`
	Disk   int `json:"disk,omitempty"`
	// Kernel and Ramdisk are those that deployments boot; "": the conductor's own.
	Kernel  string `json:"kernel,omitempty"`
	Ramdisk string `json:"ramdisk,omitempty"`
	// Inspect has the hardware read.
	Inspect bool `json:"inspect,omitempty"`
}

// columns are those of a list of servers. Each sets something of a Server.
var columns = map[string]func(*Server, string) error{
	"name":           func(s *Server, text string) error { s.Name = text; return nil },
	"driver":         func(s *Server, text string) error { s.Driver = text; return nil },
	"address":        func(s *Server, text string) error { s.Address = text; return nil },
	"user":           func(s *Server, text string) error { s.User = text; return nil },
	"password":       func(s *Server, text string) error { s.Password = text; return nil },
	"system":         func(s *Server, text string) error { s.System = text; return nil },
	"verify_ca":      func(s *Server, text string) error { s.VerifyCA = text; return nil },
	"macs":           func(s *Server, text string) error { s.MACs = strings.Fields(text); return nil },
	"resource_class": func(s *Server, text string) error { s.ResourceClass = text; return nil },
	"traits":         func(s *Server, text string) error { s.Traits = strings.Fields(text); return nil },
	"cores":          func(s *Server, text string) error { return whole(&s.Cores, text) },
	"memory":         func(s *Server, text string) error { return whole(&s.Memory, text) },
	"disk":           func(s *Server, text string) error { return whole(&s.Disk, text) },
	"kernel":         func(s *Server, text string) error { s.Kernel = text; return nil },
	"ramdisk":        func(s *Server, text string) error { s.Ramdisk = text; return nil },
	"inspect": func(s *Server, text string) (err error) {
		if s.Inspect, err = strconv.ParseBool(text); err != nil {
			return errors.New("write true or false")
		}
		return nil
	},
}

func whole(into *int, text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostSize {
		return errors.New("write a whole number")
	}
	*into = n
	return nil
}

// MaxRead bounds a list in bytes.
const MaxRead = 1 << 20

// mostServers bounds a list, and mostSize a server's cores, MiB and GiB.
const mostServers, mostSize = 500, 1 << 30

// Read reads a list in CSV, whose first line names the columns: name, driver and address, and
// as needed user, password, system, verify_ca, macs and traits (with spaces between), resource_class,
// cores, memory (MiB), disk (GiB), kernel, ramdisk and inspect. Errors name the line, and quote no
// cell.
func Read(from io.Reader) (all []Server, err error) {
	reader := csv.NewReader(from)
	reader.TrimLeadingSpace = true
	head, err := reader.Read()
	if err != nil {
		return nil, errors.New("the list of servers has no first line with the names of its columns, such as name,driver,address,user,password,macs,resource_class")
	}
	var known []string
	for name := range columns {
		known = append(known, name)
	}
	slices.Sort(known)
	for i, name := range head {
		head[i] = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(name, "\ufeff")))
		if columns[head[i]] == nil {
			return nil, fmt.Errorf("line 1: unknown column %q%s", printable.Text(head[i]), provision.DidYouMean(head[i], known))
		}
		if slices.Contains(head[:i], head[i]) {
			return nil, fmt.Errorf("line 1: the column %s is there twice", head[i])
		}
	}
	named := map[string]bool{}
	for {
		row, err := reader.Read()
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, errors.New("the list of servers is no CSV: a line has another number of cells than the first, or a quotation mark is missing")
		case len(all) == mostServers:
			return nil, fmt.Errorf("the list has more than %d servers", mostServers)
		}
		line, _ := reader.FieldPos(0)
		var s Server
		for i, cell := range row {
			if cell = strings.TrimSpace(cell); cell == "" {
				continue
			}
			if err := columns[head[i]](&s, cell); err != nil {
				return nil, fmt.Errorf("line %d: %s: %w", line, head[i], err)
			}
		}
		if err := s.Check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if named[s.Name] {
			return nil, fmt.Errorf("line %d: the server %s is there twice", line, s.Name)
		}
		named[s.Name] = true
		all = append(all, s)
	}
}

var (
	// names are what Ironic takes as names: host names.
	names      = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
	drivers    = lazyregexp.New(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	classNames = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$`)
	traitNames = lazyregexp.New(`^[A-Z][A-Z0-9_]{0,254}$`)
)

// Check says what is wrong with a server, by the field's name. It quotes nothing.
func (s *Server) Check() error {
	switch {
	case !names.MatchString(s.Name):
		return errors.New("name: write a host name of its own")
	case s.Driver == "":
		return errors.New("driver is missing: redfish or ipmi")
	case !drivers.MatchString(s.Driver):
		return errors.New("driver: write a hardware type, such as redfish or ipmi")
	case s.Address == "" && (s.Driver == "redfish" || s.Driver == "ipmi"):
		return errors.New("address is missing: that of the BMC")
	case (s.Kernel == "") != (s.Ramdisk == ""):
		return errors.New("kernel and ramdisk go together")
	case s.ResourceClass != "" && !classNames.MatchString(s.ResourceClass):
		return errors.New("resource_class: write a class as Ironic has it, such as baremetal")
	case min(s.Cores, s.Memory, s.Disk) < 0 || max(s.Cores, s.Memory, s.Disk) > mostSize:
		return errors.New("cores, memory and disk: write whole numbers")
	}
	if s.Driver == "redfish" {
		if u, err := url.Parse(s.Redfish()); err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
			return errors.New("address: write https://HOST of the BMC, without user and password")
		}
	}
	for name, address := range map[string]string{"kernel": s.Kernel, "ramdisk": s.Ramdisk} {
		// Ironic's conductor would read any file that is named, and offer it to the server.
		if scheme, _, is := strings.Cut(address, ":"); is && scheme != "https" && scheme != "http" {
			return fmt.Errorf("%s: write an address with https:// or http://, or an image of Glance's by its id", name)
		}
	}
	for _, mac := range s.MACs {
		if hardware, err := net.ParseMAC(mac); err != nil || len(hardware) != 6 {
			return errors.New("macs: write addresses such as 52:54:00:12:34:56, with spaces between")
		}
	}
	for _, trait := range s.Traits {
		if !traitNames.MatchString(trait) {
			return errors.New("traits: write capital letters, digits and _, such as CUSTOM_GPU, with spaces between")
		}
	}
	return nil
}

// Redfish is the address of a BMC that speaks Redfish, with its scheme.
func (s *Server) Redfish() string {
	if strings.Contains(s.Address, "://") {
		return s.Address
	}
	return "https://" + s.Address
}
