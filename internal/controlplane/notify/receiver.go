package notify

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/publicaddr"
	"github.com/tendril-run/tendril/internal/controlplane/store"
	"github.com/tendril-run/tendril/internal/webhook"
)

// Allowed are receivers that would be refused otherwise: within a network of
// one's own, or without TLS.
type Allowed struct {
	networks []netip.Prefix
	hosts    []string
}

// Local allows this machine.
var Local = Allowed{networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, hosts: []string{"localhost"}}

// ParseAllowed reads addresses, networks (10.0.0.0/8) and names of hosts.
func ParseAllowed(words []string) (a Allowed, err error) {
	for _, word := range words {
		word = strings.TrimSpace(word)
		if prefix, err := netip.ParsePrefix(word); err == nil {
			a.networks = append(a.networks, prefix.Masked())
		} else if address, err := netip.ParseAddr(word); err == nil {
			a.networks = append(a.networks, netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()))
		} else if word == "" || strings.ContainsAny(word, "/:@ *") {
			return a, fmt.Errorf("%q is neither an address, nor a network such as 10.0.0.0/8, nor the name of a host", word)
		} else {
			a.hosts = append(a.hosts, strings.ToLower(word))
		}
	}
	return a, nil
}

func (a Allowed) host(name string) bool {
	for _, h := range a.hosts {
		if strings.EqualFold(h, name) {
			return true
		}
	}
	address, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && a.address(address)
}

func (a Allowed) address(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	for _, n := range a.networks {
		if n.Contains(address) {
			return true
		}
	}
	return false
}

// BadURLError says why a URL is none to send to. It does not show it.
type BadURLError struct{ Problem string }

func (e *BadURLError) Error() string { return "url: " + e.Problem }

// parse reads a receiver's URL. What its name stands for is looked at when it is
// dialled: that may change.
func (a Allowed) parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "" || len(text) > 2000:
		return nil, &BadURLError{"must be a URL such as https://hooks.example/path"}
	case u.User != nil:
		return nil, &BadURLError{"must not have a user or a password: receivers verify signatures"}
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, &BadURLError{"must begin with https://"}
	case u.Scheme == "http" && !a.host(u.Hostname()):
		return nil, &BadURLError{"must begin with https://, for what is sent could be read on its way (the administrator of this control plane can allow a host by --webhook-allow)"}
	}
	if address, err := netip.ParseAddr(u.Hostname()); err == nil && !a.address(address) && !publicaddr.Is(address) {
		return nil, &BadURLError{refusal(address)}
	}
	u.Fragment = ""
	return u, nil
}

// shown is all of a URL that people see again.
func shown(u *url.URL) string { return u.Scheme + "://" + u.Host }

func refusal(address netip.Addr) string {
	return fmt.Sprintf("%s is not an address on the Internet (the administrator of this control plane can allow it by --webhook-allow)", address)
}

// control is a dialer's: it sees the address that is about to be connected to,
// so a name cannot stand for one thing when it is checked and another when it is
// used. named: the receiver's host is allowed by its name, whatever it stands for.
func (a Allowed) control(named bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, text string, _ syscall.RawConn) error {
		address, err := netip.ParseAddrPort(text)
		if err != nil {
			return fmt.Errorf("refused to connect to %s: %w", text, err)
		}
		if named || a.address(address.Addr()) || publicaddr.Is(address.Addr()) {
			return nil
		}
		return &net.AddrError{Err: "refused to connect: " + refusal(address.Addr()), Addr: ""}
	}
}

// Create makes a webhook as a person and returns the secret that its messages are
// signed with. An error of the URL is a *store.RefusedError like all others.
func (n *Notifier) Create(ctx context.Context, s *store.Store, org uuid.UUID, url string, w store.WebhookSettings) (id uuid.UUID, secret string, err error) {
	if !n.Ready() { // which is for those to know who may
		return uuid.Nil, "", cmp.Or(s.KeepsOrg(ctx, org), error(errNoKey))
	}
	id = uuid.New()
	if err := n.seal(id, url, &w); err != nil {
		return uuid.Nil, "", err
	}
	if err := s.CreateWebhook(ctx, org, id, w); err != nil {
		return uuid.Nil, "", err
	}
	return id, n.options.Key.Secret(id, 1), nil
}

// Change changes one; url "" stays as it is. It returns the signing secret that
// counts from now on.
func (n *Notifier) Change(ctx context.Context, s *store.Store, id uuid.UUID, url string, w store.WebhookSettings) (secret string, err error) {
	if !n.Ready() {
		return "", cmp.Or(s.KeepsWebhook(ctx, id), error(errNoKey))
	}
	if url != "" {
		if err := n.seal(id, url, &w); err != nil {
			return "", err
		}
	}
	generation, err := s.ChangeWebhook(ctx, id, w)
	if err != nil {
		return "", err
	}
	return n.options.Key.Secret(id, generation), nil
}

// Ready reports whether webhooks can be set up here.
func (n *Notifier) Ready() bool { return n != nil && n.options.Key != nil }

func (n *Notifier) seal(id uuid.UUID, url string, w *store.WebhookSettings) error {
	to, err := n.options.Allowed.parse(url)
	if bad, ok := errors.AsType[*BadURLError](err); ok {
		return &store.RefusedError{Code: "PT422", Reason: "bad_url", Message: bad.Error()}
	}
	if err != nil {
		return err
	}
	w.Host, w.URL = shown(to), n.options.Key.seal(id, to.String())
	return nil
}

var errNoKey = &store.RefusedError{
	Code: "PT409", Reason: "no_key", Message: "this control plane has no key of its own to keep URLs with, so it sends no notifications",
	Hint: "its administrator gives it one by --key-file",
}

// keySize is in bytes.
const keySize = 32

// Key is a control plane's own: with it URLs are sealed, and the secrets that
// sign messages are made. Every process of a control plane has the same. Without
// it, admins must create the webhooks again. The database never sees it.
type Key struct{ secret []byte }

// NewKey returns a key's file: text, with an end of line.
func NewKey() []byte {
	secret := make([]byte, keySize)
	_, _ = rand.Read(secret) // never fails
	return []byte(base64.StdEncoding.EncodeToString(secret) + "\n")
}

// ReadKey reads a key's file, which others must not be able to read.
func ReadKey(file string) (*Key, error) {
	const how = `make one with "umask 077; openssl rand -base64 32 > FILE"`
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w; %s", err, how)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("the key file %s can be read by anybody (mode %#o): take that away with chmod 600, and make another key if it may have been read", file, info.Mode().Perm())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the key file: %w", err)
	}
	secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(secret) != keySize {
		return nil, fmt.Errorf("the key file %s has no key: it must be %d random bytes in base64; %s", file, keySize, how)
	}
	return &Key{secret}, nil
}

// derive makes a key for one purpose.
func (k *Key) derive(purpose string) []byte {
	made, err := hkdf.Key(sha256.New, k.secret, nil, "tendril "+purpose, keySize)
	if err != nil {
		panic(err) // only for a length that nobody asks for
	}
	return made
}

// signing is what signs messages to a webhook.
func (k *Key) signing(webhook uuid.UUID, generation int) []byte {
	return k.derive(fmt.Sprintf("webhook signature %s %d", webhook, generation))
}

// Secret is what the receiver verifies signatures with, as it is shown.
func (k *Key) Secret(id uuid.UUID, generation int) string {
	return webhook.WriteSecret(k.signing(id, generation))
}

// seal makes of a webhook's URL what only the key opens, and only for that webhook.
func (k *Key) seal(webhook uuid.UUID, url string) []byte {
	return k.box().Seal(nil, nil, []byte(url), webhook[:])
}

var errSealed = errors.New("the webhook's URL cannot be opened with this control plane's key: give it the key file that it had, or set the URL again")

func (k *Key) open(webhook uuid.UUID, sealed []byte) (string, error) {
	url, err := k.box().Open(nil, nil, sealed, webhook[:])
	if err != nil {
		return "", errSealed // the library's error says nothing more
	}
	return string(url), nil
}

func (k *Key) box() cipher.AEAD {
	block, err := aes.NewCipher(k.derive("webhook URL"))
	if err != nil {
		panic(err) // only for a key of another length
	}
	box, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // only for a block of another size
	}
	return box
}
