package proxmox

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tendril-run/tendril/internal/pvesim"
)

// exchange is one call of the life of a machine, as the first document that asked for Proxmox
// lists them: what is sent, and what an answer must have at least.
type exchange struct {
	method, path string
	values       url.Values
	// want is a pattern of the answer's data for each key; "" is the data itself.
	want map[string]string
}

const anyUPID = `^UPID:pve1:[0-9A-F]{8}:[0-9A-F]{8}:[0-9A-F]{8}:%s:%s:.*:$`

// The calls by which a machine is cloned, configured, started, asked for its address, stopped and
// deleted, each sent as it is and each with the answer that it is known to have, which the driver
// understands. Proxmox VE 9.2 no longer answers diskread and diskwrite, which the driver reads none of.
func TestLifeCallByCall(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	d, ctx := l.driver(), l.context()
	l.pve.Guest(9000, pvesim.Guest{Addresses: []string{"10.0.0.100/24"}})
	const number = `^[0-9.e+-]+$`
	clone, config, start := "/nodes/pve1/qemu/9000/clone", "/nodes/pve1/qemu/500/config", "/nodes/pve1/qemu/500/status/start"
	task := func(kind string) exchange {
		return exchange{"GET", "/nodes/pve1/tasks/{upid}/status", nil, map[string]string{
			"status": "^(running|stopped)$", "type": "^" + kind + "$", "user": "^ci@pve$", "starttime": number, "node": "^pve1$",
		}}
	}
	for _, e := range []exchange{
		{"POST", clone, url.Values{"newid": {"500"}, "name": {"vm-name"}, "full": {"1"}, "storage": {"disks"}}, map[string]string{"": fmt.Sprintf(anyUPID, "qmclone", "9000")}},
		task("qmclone"),
		{"PUT", config, url.Values{
			"ciuser": {"admin"}, "cipassword": {"a-secret-of-a-guest"}, "sshkeys": {encodeKeys(spec().Init.SSHKeys)}, "ipconfig0": {"ip=10.0.0.100/24,gw=10.0.0.1"},
			"nameserver": {"10.0.0.1"}, "cores": {"2"}, "memory": {"2048"},
		}, map[string]string{"": "^$"}},
		{"POST", start, nil, map[string]string{"": fmt.Sprintf(anyUPID, "qmstart", "500")}},
		task("qmstart"),
		{"GET", "/nodes/pve1/qemu/500/status/current", nil, map[string]string{
			"vmid": "^500$", "name": "^vm-name$", "status": "^running$", "qmpstatus": "^running$", "cpus": "^2$", "maxmem": "^2147483648$", "maxdisk": number, "uptime": number,
			"netin": number, "netout": number, "cpu": number, "mem": number, "pid": number, "ha": `^map\[managed:0\]$`,
		}},
		{"GET", "/nodes/pve1/qemu/500/agent/network-get-interfaces", nil, map[string]string{"result": `name:eth0.*|ip-address:10\.0\.0\.100 ip-address-type:ipv4 prefix:24`}},
		{"POST", "/nodes/pve1/qemu/500/status/stop", nil, map[string]string{"": fmt.Sprintf(anyUPID, "qmstop", "500")}},
		task("qmstop"),
		{"DELETE", "/nodes/pve1/qemu/500", url.Values{"purge": {"1"}, "destroy-unreferenced-disks": {"1"}}, map[string]string{"": fmt.Sprintf(anyUPID, "qmdestroy", "500")}},
		task("qmdestroy"),
	} {
		l.exchange(e)
		switch g := (&guest{id: 500, node: "pve1"}); {
		case strings.HasSuffix(e.path, "/current"):
			if now, err := d.current(ctx, g); err != nil || now.Status != "running" || now.QMP != "running" {
				t.Errorf("the driver reads %+v, %v", now, err)
			}
		case strings.HasSuffix(e.path, "-interfaces"):
			if addresses, err := d.reported(ctx, g); err != nil || fmt.Sprint(addresses) != "[10.0.0.100]" {
				t.Errorf("the driver reads the addresses %v, %v", addresses, err)
			}
		case strings.HasSuffix(e.path, "/{upid}/status"):
			if err := d.follow(ctx, l.upid, step{id: "x", limit: time.Minute}, &heard{}); err != nil {
				t.Errorf("the driver follows the task and has %v", err)
			}
		}
	}
	if l.pve.Config(500) != nil {
		t.Error("the machine is not gone")
	}
}

// exchange sends a request, compares the answer, and waits for the task that it has started.
func (l *lab) exchange(e exchange) {
	l.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	address, body := l.pve.URL()+"/api2/json"+strings.ReplaceAll(e.path, "{upid}", url.PathEscape(l.upid)), e.values.Encode()
	if e.method == http.MethodDelete && body != "" {
		address, body = address+"?"+body, ""
	}
	request, err := http.NewRequestWithContext(l.context(), e.method, address, strings.NewReader(body))
	if err != nil {
		l.Fatal(err)
	}
	request.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
	if body != "" {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	response, err := client.Do(request)
	if err != nil {
		l.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		l.Fatalf("%s %s = %s %s, %v", e.method, e.path, response.Status, text, err)
	}
	var answer struct{ Data any }
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&answer); err != nil {
		l.Fatalf("%s %s = %s: %v", e.method, e.path, text, err)
	}
	for key, want := range e.want {
		got := answer.Data
		if fields, ok := got.(map[string]any); ok {
			got = fields[key]
		}
		if got == nil {
			got = ""
		}
		if !regexp.MustCompile(want).MatchString(fmt.Sprint(got)) {
			l.Errorf("%s %s: %q is %v, want %s", e.method, e.path, key, got, want)
		}
	}
	if upid, ok := answer.Data.(string); ok && strings.HasPrefix(upid, "UPID:") {
		if l.upid = upid; l.pve.Wait(upid) != "OK" {
			l.Errorf("%s %s: the task ended as %s", e.method, e.path, l.pve.Wait(upid))
		}
	}
}
