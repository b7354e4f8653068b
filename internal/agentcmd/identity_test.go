package agentcmd

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tendril-run/tendril/internal/agentkey"
	"github.com/tendril-run/tendril/internal/identity"
	"github.com/tendril-run/tendril/internal/queue/rpcqueue"
	"github.com/tendril-run/tendril/internal/seal"
	"github.com/tendril-run/tendril/internal/testkit/gatewaytest"
	"github.com/tendril-run/tendril/internal/testkit/outputtest"
	"github.com/tendril-run/tendril/internal/testkit/pages"
	"github.com/tendril-run/tendril/internal/testkit/patience"
	"github.com/tendril-run/tendril/internal/testkit/queuetest"
)

// words are those of a documented command, without the program's name.
func words(text string) []string { return strings.Fields(text)[1:] }

func heldIn(t *testing.T, path string) seal.Identities {
	t.Helper()
	all, err := identity.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s = %v, %v, want 0600", path, info.Mode(), err)
	}
	return all
}

func TestIdentityIsMadeShownAndExported(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	file := filepath.Join(data, "identity")
	env := []string{"TENDRIL_DATA_DIR=" + data}
	out, code := tendril(t, env, words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity new"))...)
	if first := heldIn(t, file); code != ExitOK || !strings.Contains(out, first.Public()) || !strings.Contains(out, identity.Fingerprint(first.Public())) {
		t.Errorf("identity new = %d, %q, want the public half and its fingerprint", code, out)
	}
	first := heldIn(t, file)
	if out, code := tendril(t, env, "identity", "new"); code != ExitFailure || !strings.Contains(out, "--rotate") || heldIn(t, file).Public() != first.Public() {
		t.Errorf("identity new again = %d, %q, want a refusal", code, out)
	}
	if out, code := tendril(t, env, words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity new --rotate"))...); code != ExitOK {
		t.Errorf("identity new --rotate = %d, %q", code, out)
	}
	all := heldIn(t, file)
	if len(all) != 2 || all[1:].Public() != first.Public() {
		t.Fatalf("after --rotate there are %d identities, want a new one before the first", len(all))
	}
	out, code = tendril(t, env, words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity show"))...)
	if code != ExitOK || !strings.Contains(out, "Current identity\n  public key   "+all.Public()) || !strings.Contains(out, "Older identity\n  public key   "+first.Public()) || strings.Contains(out, "AGE-SECRET-KEY") {
		t.Errorf("identity show = %d, %q, want both public halves", code, out)
	}

	copied := filepath.Join(t.TempDir(), "copy")
	out, code = tendril(t, env, words(pages.Code(t, "docs/GUIDE.md", "tendril identity export --to FILE", "FILE", copied))...)
	if code != ExitOK || !strings.Contains(out, "Warning") || strings.Contains(out, "AGE-SECRET-KEY") || identity.Text(heldIn(t, copied)) != identity.Text(all) {
		t.Errorf("identity export = %d, %q, want a copy and a warning", code, out)
	}
	for _, args := range [][]string{{"--to", copied}, {}, {"--to", filepath.Join(t.TempDir(), "c"), "--passphrase"}} {
		if out, code := tendril(t, env, append([]string{"identity", "export"}, args...)...); code == ExitOK || strings.Contains(out, "AGE-SECRET-KEY") {
			t.Errorf("identity export %q = %d, %q, want a refusal", args, code, out)
		}
	}
	if out, code := tendril(t, env, "identity", "export", "--to", "-"); code != ExitOK || !strings.Contains(out, all[0].String()) {
		t.Errorf("identity export --to - = %d, want the identity", code)
	}

	// A file of its own, for a Secret.
	own := filepath.Join(t.TempDir(), "identity")
	for _, text := range []string{
		pages.Code(t, "charts/tendril/README.md", "tendril identity new --file identity", "--file identity", "--file "+own),
		pages.Code(t, "docs/OPERATIONS.md", "tendril identity new --rotate --file identity", "--file identity", "--file "+own),
	} {
		if out, code := tendril(t, nil, words(text)...); code != ExitOK {
			t.Errorf("%s = %d, %q", text, code, out)
		}
	}
	if n := len(heldIn(t, own)); n != 2 {
		t.Errorf("the Secret's file has %d identities, want 2", n)
	}
}

// The passphrase is typed at a terminal, and shown nowhere.
func TestIdentityIsExportedUnderAPassphrase(t *testing.T) {
	t.Parallel()
	data, restored, copied := t.TempDir(), filepath.Join(t.TempDir(), "other"), filepath.Join(t.TempDir(), "identity.age")
	env := []string{"TENDRIL_DATA_DIR=" + data}
	if out, code := tendril(t, env, "identity", "new"); code != ExitOK {
		t.Fatalf("identity new = %d, %q", code, out)
	}
	const passphrase = "correct horse battery"
	export := words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity export --to identity.age --passphrase", "identity.age", copied))
	if said, code := typing(t, env, export, "short", "short"); code != ExitFailure || !strings.Contains(said, "at least 12") {
		t.Errorf("export under a short passphrase = %d, %q, want a refusal", code, said)
	}
	if said, code := typing(t, env, export, passphrase, passphrase+"s"); code != ExitFailure || !strings.Contains(said, "differ") {
		t.Errorf("export under two passphrases = %d, %q, want a refusal", code, said)
	}
	if _, err := os.Stat(copied); err == nil {
		t.Error("a refused export has written a file")
	}
	if said, code := typing(t, env, export, passphrase, passphrase); code != ExitOK || strings.Contains(said, passphrase) {
		t.Errorf("export = %d, %q, want a copy, and the passphrase not shown", code, said)
	}
	text, err := os.ReadFile(copied)
	if info, errStat := os.Stat(copied); err != nil || errStat != nil || info.Mode().Perm() != 0o600 || !bytes.HasPrefix(text, []byte("-----BEGIN AGE ENCRYPTED FILE-----\n")) {
		t.Errorf("the copy = %q, %v, want an armoured message, 0600", text, err)
	}
	env = []string{"TENDRIL_DATA_DIR=" + restored}
	back := words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity import identity.age", "identity.age", copied))
	if said, code := typing(t, env, back, passphrase+"s"); code != ExitFailure || !strings.Contains(said, "wrong") {
		t.Errorf("import under another passphrase = %d, %q, want a refusal", code, said)
	}
	if said, code := typing(t, env, back, passphrase); code != ExitOK || strings.Contains(said, passphrase) {
		t.Errorf("import = %d, %q, want the identity back", code, said)
	}
	if got, want := heldIn(t, filepath.Join(restored, "identity")), heldIn(t, filepath.Join(data, "identity")); identity.Text(got) != identity.Text(want) {
		t.Error("what was imported is not what was exported")
	}
}

// typing runs a command at a terminal where a person answers each question, and returns what
// they see.
func typing(t *testing.T, env, args []string, answers ...string) (string, int) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = master.Close() }()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd, _ := command(t, env, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close() // so that what is read ends with the process
	said, read := &outputtest.Buffer{}, make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(said, master) // ends with an error on Linux
	}()
	for n, answer := range answers {
		patience.AwaitShowing(t, "to be asked in silence", said.String, func() bool {
			termios, err := unix.IoctlGetTermios(int(master.Fd()), unix.TCGETS)
			return strings.Count(said.String(), ": ") == n+1 && err == nil && termios.Lflag&unix.ECHO == 0
		})
		if _, err := master.WriteString(answer + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	<-read
	return said.String(), cmd.ProcessState.ExitCode()
}

// sharing is an agent A that has the identity of its cluster, and an agent B that has joined.
type sharing struct {
	world *queuetest.World
	a     string // A's data directory
	env   []string
	all   seal.Identities
	b     string
	key   agentkey.Key
}

func newSharing(t *testing.T) *sharing {
	t.Helper()
	s := &sharing{world: queuetest.NewWorld(t), a: t.TempDir(), b: t.TempDir()}
	s.env = []string{"TENDRIL_QUEUE_URL=" + s.world.AgentURL(t), "TENDRIL_API_TOKEN=" + s.world.Token, "TENDRIL_DATA_DIR=" + s.a}
	var err error
	if s.all, err = identity.Create(filepath.Join(s.a, "identity")); err == nil {
		s.all, err = identity.Rotate(filepath.Join(s.a, "identity"))
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.a, "cluster"), []byte("prod\n"), 0o600)
	}
	if err == nil {
		s.key, err = agentkey.Create(s.b)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.world.Exec(t, "UPDATE public.clusters SET age_public_key = $2 WHERE id = $1", s.world.Cluster, s.all.Public())
	s.world.Exec(t, "INSERT INTO tendril.agent_keys (cluster_id, public_key, name) VALUES ($1, $2, 'b')", s.world.Cluster, []byte(s.key.Public()))
	return s
}

func (s *sharing) shares(t *testing.T) string {
	t.Helper()
	return s.world.Text(t, "SELECT coalesce(string_agg(sealed, ''), '') FROM tendril.identity_shares")
}

// The operators of two agents hand fingerprints over, and nothing else.
func TestIdentityIsShared(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	if out, code := tendril(t, s.env, "identity", "show"); code != ExitOK || !strings.Contains(out, "The current identity is that of cluster prod.") {
		t.Errorf("identity show on A = %d, %q, want that it has the cluster's", code, out)
	}
	gateway := gatewaytest.ServeForKeys(t, s.world)
	q, err := rpcqueue.New(rpcqueue.Options{URL: gateway.URL, APIKey: gateway.APIKey, CAFile: gateway.CAFile, Key: s.key.Private(), Agent: queuetest.NewAgent("b")})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for _, fingerprint := range []string{s.key.Words(), s.key.Fingerprint()} {
		s.world.Exec(t, "DELETE FROM tendril.identity_shares")
		out, code := tendril(t, s.env, words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity share FINGERPRINT", "FINGERPRINT", fingerprint))...)
		accept := "tendril identity accept " + identity.Fingerprint(s.all.Public())
		if code != ExitOK || !strings.Contains(out, s.key.Words()) || !strings.Contains(out, accept) || strings.Contains(out, "AGE-SECRET-KEY") {
			t.Fatalf("identity share = %d, %q, want with whom, and what to do there", code, out)
		}
		sealed, err := q.SharedIdentity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		opened, err := identity.Open(sealed, s.key, "prod", time.Now())
		if err != nil || identity.Text(opened) != identity.Text(s.all) {
			t.Errorf("B opens %d identities, %v, want A's", len(opened), err)
		}
	}
	out, code := tendril(t, []string{"TENDRIL_DATA_DIR=" + s.b}, words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity accept FINGERPRINT", "FINGERPRINT", identity.Fingerprint(s.all.Public())))...)
	accepted, err := identity.ReadAccepted(s.b)
	if code != ExitOK || err != nil || !accepted.Is(s.all.Public()) {
		t.Errorf("identity accept = %d, %q, %v, want A's identity accepted", code, out, err)
	}
	if out, code := tendril(t, []string{"TENDRIL_DATA_DIR=" + s.b, "TENDRIL_IDENTITY_FILE=/nowhere/identity"}, "identity", "accept", s.all.Public()); code != ExitFailure || !strings.Contains(out, "identity_file") {
		t.Errorf("identity accept with an identity_file = %d, %q, want a refusal", code, out)
	}
}

// A person certifies B with a key of ssh-keygen, on a machine without an agent. B's operator accepts
// the certificate, and nobody is needed at A.
func TestIdentityIsCertified(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	keygen := exec.CommandContext(t.Context(), "sh", "-euc", pages.Block(t, "docs/OPERATIONS.md", "ssh-keygen -t ed25519 -f certifier", "-f certifier", "-q -N '' -f certifier"))
	keygen.Dir = t.TempDir()
	if out, err := keygen.CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v, %s", err, out)
	}
	key, file := filepath.Join(keygen.Dir, "certifier"), filepath.Join(keygen.Dir, "certificate")
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	certify := func(words, public string, more ...string) (string, int) {
		t.Helper()
		return tendril(t, nil, append([]string{"identity", "certify", words, "--key", key, "--cluster", "prod", "--identity", public}, more...)...)
	}
	env := []string{"TENDRIL_DATA_DIR=" + s.b, "TENDRIL_POLICY_IDENTITY_CERTIFIERS=" + strings.TrimSpace(string(public))}
	accept := words(pages.Code(t, "docs/OPERATIONS.md", "tendril identity accept --certificate FILE", "FILE", file))
	accepts := func(certificate string, env []string) (string, int) {
		t.Helper()
		if err := os.WriteFile(file, []byte(certificate), 0o600); err != nil {
			t.Fatal(err)
		}
		return tendril(t, env, accept...)
	}

	sh := exec.CommandContext(t.Context(), "sh", "-euc", "tendril() { "+os.Args[0]+` "$@"; }; `+pages.Block(t, "docs/OPERATIONS.md", "tendril identity certify FINGERPRINT", "FINGERPRINT", s.key.Words(), "--cluster NAME", "--cluster prod", "IDENTITY", `"`+identity.Fingerprint(s.all.Public())+`"`))
	sh.Dir = keygen.Dir
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("identity certify: %v, %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	good := string(text)
	certifiers, err := identity.ParseCertifiers([]string{string(public)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := certifiers.Verify(strings.TrimSpace(good), "prod", s.key.Public(), time.Now())
	if err != nil || !c.Allows(s.all.Public()) || c.Until.Sub(c.From) != identity.CertificateFor {
		t.Errorf("the certificate = %+v, %v, want one for B and the cluster's identity", c, err)
	}

	for name, c := range map[string]struct {
		certificate string
		env         []string
		says        string
	}{
		"no certifier is named":         {good, env[:1], "policy.identity_certifiers"},
		"the certifier is no key":       {good, append(env[:1:1], "TENDRIL_POLICY_IDENTITY_CERTIFIERS=ssh-rsa AAAA"), "policy.identity_certifiers"},
		"an agent without a key":        {good, append(env[1:2:2], "TENDRIL_DATA_DIR="+t.TempDir()), "tendril join"},
		"an agent of another cluster":   {good, append(env[1:2:2], "TENDRIL_DATA_DIR="+elsewhere(t, s)), "belongs to"},
		"with an identity_file":         {good, append(env[:2:2], "TENDRIL_IDENTITY_FILE=/nowhere/identity"), "identity_file"},
		"not a certificate":             {"certificate", env, "refused"},
		"for another agent's key":       {strings.TrimSpace(first(certify(identity.Fingerprint("other"), s.all.Public()))), env, "another agent"},
		"that has expired":              {first(certify(s.key.Words(), s.all.Public(), "--valid", "1ns")), env, "expired"},
		"a certificate that was halved": {good[:len(good)/2], env, "refused"},
	} {
		out, code := accepts(c.certificate, c.env)
		if accepted, err := identity.ReadAccepted(s.b); code == ExitOK || !strings.Contains(out, c.says) || err != nil || !accepted.None() {
			t.Errorf("%s: identity accept --certificate = %d, %q, %v, want a refusal that says %q", name, code, out, err, c.says)
		}
	}
	out, code := accepts(good, env)
	accepted, err := identity.ReadAccepted(s.b)
	kept, errKept := identity.ReadCertificate(s.b)
	if code != ExitOK || err != nil || errKept != nil || !accepted.Is(s.all.Public()) || kept != strings.TrimSpace(good) {
		t.Errorf("identity accept --certificate = %d, %q, %v, %v, want A's identity accepted, and the certificate kept", code, out, err, errKept)
	}

	for _, args := range [][]string{
		{"--valid", "169h"}, {"--valid", "0s"}, {"--identity", "AGE-SECRET-KEY-1"}, {"--cluster", ""}, {"--key", ""},
		{"--key", filepath.Join(s.a, "identity")}, {"--key", key + ".pub"},
	} {
		if out, code := certify(s.key.Words(), s.all.Public(), args...); code == ExitOK || strings.Contains(out, "tendril-identity-certificate") || strings.Contains(out, "AGE-SECRET-KEY-1"+"Q") {
			t.Errorf("identity certify %q = %d, %q, want a refusal", args, code, out)
		}
	}
}

// A certifying key of ssh-keygen may have a passphrase, and one of openssl does as well.
func TestCertifyingKeys(t *testing.T) {
	t.Parallel()
	const passphrase = "correct horse"
	dir, public := t.TempDir(), "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	for _, make := range []string{"ssh-keygen -q -t ed25519 -N '" + passphrase + "' -f locked", "openssl genpkey -algorithm ed25519 -out pkcs8 && chmod 0600 pkcs8", "ssh-keygen -q -t ecdsa -N '' -f ecdsa", "ssh-keygen -q -t ed25519 -N '' -f open && chmod 0644 open"} {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", make)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v, %s", make, err, out)
		}
	}
	args := func(key string) []string {
		return []string{"identity", "certify", strings.Repeat("0", 64), "--key", filepath.Join(dir, key), "--cluster", "prod", "--identity", public}
	}
	if out, code := tendril(t, nil, args("pkcs8")...); code != ExitOK || !strings.HasPrefix(out, "tendril-identity-certificate-1.") {
		t.Errorf("identity certify with a key of openssl = %d, %q, want a certificate", code, out)
	}
	for key, says := range map[string]string{"locked": "no terminal", "ecdsa": "not Ed25519", "open": "chmod o=", "none": "no such file"} {
		if out, code := tendril(t, nil, args(key)...); code != ExitFailure || !strings.Contains(out, says) {
			t.Errorf("identity certify with the key %s = %d, %q, want a refusal that says %q", key, code, out, says)
		}
	}
	if said, code := typing(t, nil, args("locked"), passphrase); code != ExitOK || !strings.Contains(said, "tendril-identity-certificate-1.") || strings.Contains(said, passphrase) {
		t.Errorf("identity certify with a passphrase = %d, %q, want a certificate", code, said)
	}
	if said, code := typing(t, nil, args("locked"), "wrong"); code != ExitFailure || !strings.Contains(said, "passphrase") {
		t.Errorf("identity certify with a wrong passphrase = %d, %q, want a refusal", code, said)
	}
}

// elsewhere is a data directory with B's key, whose agent has noted another cluster.
func elsewhere(t *testing.T, s *sharing) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(s.b, agentkey.File))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, agentkey.File), text, 0o600)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cluster"), []byte("dev\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func first(out string, _ int) string { return out }

// Whatever key a hostile database names, A seals to the one whose fingerprint was typed.
func TestShareWithAForgedKey(t *testing.T) {
	t.Parallel()
	s := newSharing(t)
	mallory, err := agentkey.Create(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	refused := func(name, says string, args ...string) {
		t.Helper()
		out, code := tendril(t, s.env, append([]string{"identity", "share"}, args...)...)
		if code == ExitOK || !strings.Contains(out, says) || s.shares(t) != "" {
			t.Errorf("%s: identity share = %d, %q, want a refusal that says %q, and nothing shared", name, code, out, says)
		}
	}
	refused("a fingerprint of nobody", "no agent of this cluster", mallory.Fingerprint())
	refused("a part of a fingerprint", "64 hexadecimal digits", s.key.Fingerprint()[:40])
	s.world.Exec(t, "UPDATE tendril.agent_keys SET public_key = $2 WHERE public_key = $1", []byte(s.key.Public()), []byte(mallory.Public()))
	refused("the key's row is forged", "no agent of this cluster", s.key.Words())
	s.world.Exec(t, fmt.Sprintf("CREATE OR REPLACE FUNCTION public.agent_key(p_token_hash text, p_fingerprint text) RETURNS text LANGUAGE sql SECURITY DEFINER AS $$ SELECT '%x' $$", []byte(mallory.Public())))
	refused("another key under the right fingerprint", "another fingerprint", s.key.Words())
	refused("another key under the right fingerprint", "another fingerprint", s.key.Fingerprint())
	s.world.Exec(t, "UPDATE public.clusters SET name = 'dev' WHERE id = $1", s.world.Cluster)
	refused("the agent is said to be another cluster's", "has noted prod", s.key.Fingerprint())
	s.world.Exec(t, "UPDATE public.clusters SET name = 'prod', age_public_key = $2 WHERE id = $1", s.world.Cluster, "age1"+strings.Repeat("q", 58))
	refused("A has not the cluster's identity", "does not have the cluster's identity", s.key.Fingerprint())
}
