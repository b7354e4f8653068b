package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"

	"github.com/tendril-run/tendril/internal/provision"
)

// What fetch does with a mirror that is there.
type mirrorUse bool

const (
	keepMirror    mirrorUse = false
	replaceMirror mirrorUse = true
)

// fetch brings commit and all it holds into the mirror. One process at a time
// fetches a repository; the others wait and then find what they came for.
func (s *Source) fetch(ctx context.Context, a address, m mirror, commit plumbing.Hash, tag string, use mirrorUse) error {
	unlock, err := m.lock(ctx, fetchLock, exclusive)
	if err != nil {
		return err
	}
	defer unlock()
	if use == replaceMirror {
		err = m.remove(ctx)
	} else if m.complete(commit) {
		return nil
	}
	if err != nil {
		return err
	}
	err = s.fetchOnce(ctx, a, m, commit, tag)
	if isCorrupt(err) {
		// Either the mirror was damaged before or the server did not send what
		// it should; a fresh mirror tells which.
		if err := m.remove(ctx); err != nil {
			return err
		}
		err = s.fetchOnce(ctx, a, m, commit, tag)
	}
	return stillCorrupt(a, commit, err)
}

// stillCorrupt blames the server for what is wrong with a fresh mirror.
func stillCorrupt(a address, commit plumbing.Hash, err error) error {
	if corrupt, ok := errors.AsType[*corruptError](err); ok {
		return provision.Fail(provision.CodeCheckoutFailed,
			fmt.Sprintf("template_source.repo: %s: the server did not send all of commit %s: %s", a, commit, printable(corrupt.err.Error(), 200)), err)
	}
	return err
}

// fetchOnce asks for as little as the server lets it: the commit alone by the
// name that it is advertised under, else by its id, else everything.
func (s *Source) fetchOnce(ctx context.Context, a address, m mirror, commit plumbing.Hash, tag string) error {
	if err := m.prepare(ctx, s.limits.packs); err != nil {
		return err
	}
	have, err := m.newest(maxHave)
	if err != nil {
		return err
	}
	asked, advertised := false, false
	alone := func(refs *packp.AdvRefs) wish {
		asked = true
		var want plumbing.Hash
		if want, advertised = advertisedAs(refs, commit, tag); !advertised {
			want = commit
		}
		return wish{want: []plumbing.Hash{want}, shallow: true, have: have}
	}
	err = s.download(ctx, a, m, alone)
	if len(have) > 0 && asked && maybeOfHave(ctx, err) {
		have = nil // it may make nothing of what is here
		err = s.download(ctx, a, m, alone)
	}
	// Whether a server gives out a commit that no reference names is its own
	// affair, and so is how it declines.
	if asked && !advertised && theirs(ctx, err) && !isCorrupt(err) {
		err = s.download(ctx, a, m, func(refs *packp.AdvRefs) wish {
			return wish{want: tips(refs)}
		})
	}
	if unreachable, ok := errors.AsType[*unreachableError](err); ok {
		return unreachable.err
	}
	if err != nil {
		return err
	}
	objects, err := m.objects()
	if err != nil {
		return err
	}
	defer objects.close()
	if !advertised && !objects.has(commit) {
		return provision.Fail(provision.CodeVersionNotFound,
			fmt.Sprintf("template_source.version: %s has no commit %s that a branch or tag leads to", a, commit), nil)
	}
	if err := objects.verify(ctx, commit); err != nil {
		return err
	}
	return m.markComplete(commit)
}

// theirs reports whether err is a server's answer, which another question may
// change.
func theirs(ctx context.Context, err error) bool {
	_, unreachable := errors.AsType[*unreachableError](err)
	_, local := errors.AsType[*localError](err)
	return err != nil && !unreachable && !local && ctx.Err() == nil
}

// maybeOfHave reports whether a fetch may have failed because the server was
// told what is here: some break off, or say nothing at all. One that ran out of
// time in the middle of an answer had understood.
func maybeOfHave(ctx context.Context, err error) bool {
	_, local := errors.AsType[*localError](err)
	return err != nil && !local && !isCorrupt(err) && !errors.Is(err, errTimeout) && ctx.Err() == nil
}

func isCorrupt(err error) bool {
	_, corrupt := errors.AsType[*corruptError](err)
	return corrupt
}

const (
	// maxHave is of how many commits a server is told that they are here.
	maxHave = 16
	// silenceShare is the part of the time for an exchange within which its
	// answer to that must begin, so that most is left for asking without.
	silenceShare = 4
)

// wish is what to ask a server for.
type wish struct {
	want    []plumbing.Hash
	shallow bool // without the history
	have    []plumbing.Hash
	// commitsOnly asks for commits without their files, where the server can.
	commitsOnly bool
	most        int64 // bytes of the pack; 0: maxPack
}

// download asks for a pack and puts it into the mirror.
func (s *Source) download(ctx context.Context, a address, m mirror, choose func(*packp.AdvRefs) wish) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	return s.exchange(ctx, a, func(ctx context.Context, conn session, refs *packp.AdvRefs) error {
		w := choose(refs)
		if len(w.want) == 0 {
			return nil
		}
		req, err := request(refs, w)
		if err != nil {
			return err
		}
		began := func() {}
		if len(w.have) > 0 {
			silence := time.AfterFunc(s.timeout/silenceShare, func() { giveUp(errSilence) })
			began = func() { silence.Stop() }
		}
		res, err := conn.UploadPack(ctx, req)
		began()
		if err != nil {
			return err
		}
		defer func() { _ = res.Close() }()
		var pack io.Reader = res
		switch {
		case req.Capabilities.Supports(capability.Sideband64k):
			pack = sideband.NewDemuxer(sideband.Sideband64k, res)
		case req.Capabilities.Supports(capability.Sideband):
			pack = sideband.NewDemuxer(sideband.Sideband, res)
		}
		if w.most > 0 {
			pack = &countdown{r: pack, left: w.most, err: errHistoryTooLarge}
		}
		return m.receive(pack)
	})
}

// request asks for the wish. What is here already is told of as commits without
// history, which is how most came; servers then leave out what these hold if
// they may send differences to it (a thin pack), and else send everything.
func request(refs *packp.AdvRefs, w wish) (*packp.UploadPackRequest, error) {
	req := packp.NewUploadPackRequestFromCapabilities(refs.Capabilities)
	req.Wants = w.want
	var err error
	if refs.Capabilities.Supports(capability.NoProgress) {
		err = req.Capabilities.Set(capability.NoProgress)
	}
	if w.commitsOnly && refs.Capabilities.Supports(capability.Filter) {
		err = errors.Join(err, req.Capabilities.Set(capability.Filter))
		req.Filter = packp.FilterTreeDepth(0)
	}
	if w.shallow && refs.Capabilities.Supports(capability.Shallow) {
		err = errors.Join(err, req.Capabilities.Set(capability.Shallow))
		req.Depth = packp.DepthCommits(1)
		if len(w.have) > 0 {
			// go-git does not tell whether it is advertised. Servers that know
			// of commits without history know of it as well.
			err = errors.Join(err, req.Capabilities.Set(capability.ThinPack))
			req.Shallows, req.Haves = w.have, w.have
		}
	}
	return req, err
}

// advertisedAs returns the object to ask for to get commit: a server hands out
// what its references name, so for an annotated tag that is the tag.
func advertisedAs(refs *packp.AdvRefs, commit plumbing.Hash, tag string) (plumbing.Hash, bool) {
	names := func(ref string) (plumbing.Hash, bool) {
		hash := refs.References[ref]
		return hash, hash == commit || refs.Peeled[ref] == commit && !hash.IsZero()
	}
	if hash, ok := names("refs/tags/" + tag); ok {
		return hash, true
	}
	for ref := range refs.References {
		if hash, ok := names(ref); ok {
			return hash, true
		}
	}
	return plumbing.ZeroHash, false
}

// tips returns what all branches and tags name.
func tips(refs *packp.AdvRefs) []plumbing.Hash {
	seen := map[plumbing.Hash]bool{}
	var hashes []plumbing.Hash
	for ref, hash := range refs.References {
		if (strings.HasPrefix(ref, "refs/heads/") || strings.HasPrefix(ref, "refs/tags/")) && !seen[hash] {
			seen[hash] = true
			hashes = append(hashes, hash)
		}
	}
	return hashes
}
