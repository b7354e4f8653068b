package console

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/controlplane/store"
)

func (c *console) poolPages() {
	c.page("GET /pools", c.pools)
	c.page("GET /pools/{id}", c.pool)
	c.page("POST /pools/quotas", c.setQuota)
	c.page("POST /pools/quotas/delete", c.deleteQuota)
	c.page("POST /pools/{id}/places/free", c.freePlace)
	c.page("POST /pools/{id}/images", c.setPoolImage)
	c.page("POST /pools/{id}/images/delete", c.deletePoolImage)
}

// load is how much of something is in use, as a bar: what is used, and what is reserved and
// not in that yet.
type load struct {
	Kind          string // cores, memory, machines or storage
	Used, New, Of float64
	AllReserved   float64 // of all machines that have a place there
}

// coresLoad and memoryLoad are those of a node or of a pool.
func coresLoad(l store.Load) load {
	return load{"cores", l.CoresUsed, l.CoresNew, float64(l.Cores), float64(l.CoresReserved)}
}
func memoryLoad(l store.Load) load {
	return load{"memory", l.MemoryUsed, l.MemoryNew, float64(l.MemoryMiB), float64(l.MemoryReserved)}
}

func storageLoad(s store.Storage) load {
	return load{"storage", s.SizeGiB - s.FreeGiB, 0, s.SizeGiB, 0}
}

// quotaLoad is what is used of a part of a quota; nil: any amount is allowed.
func quotaLoad(kind string, used int64, most *int) *load {
	if most == nil {
		return nil
	}
	return &load{kind, float64(used), 0, float64(*most), 0}
}

// share is a part of all as a percentage, where that leaves room.
func (l load) share(part, room float64) float64 {
	if l.Of <= 0 {
		return room
	}
	return max(0, min(room, 100*part/l.Of))
}

// UsedShare and NewShare are how wide the parts of the bar are, in percent.
func (l load) UsedShare() float64 { return l.share(l.Used, 100) }
func (l load) NewShare() float64  { return l.share(l.New, 100-l.UsedShare()) }

// Tone is warn where little is left.
func (l load) Tone() string {
	const little = 90 // percent in use
	if l.UsedShare()+l.NewShare() >= little {
		return "warn"
	}
	return "good"
}

// Free is what is left.
func (l load) Free() float64 { return max(0, l.Of-l.Used-l.New) }

// Reserved is what all machines that have a place there have, in its unit.
func (l load) Reserved() string { return l.Amount(l.AllReserved) }

// All is all of it, in its unit.
func (l load) All() string { return l.Amount(l.Of) }

// Amount is a part of it in its unit: cores with one decimal, memory in GiB.
func (l load) Amount(part float64) string {
	if l.Kind == "memory" {
		return decimal(part / 1024)
	}
	return decimal(part)
}

// decimal is a figure with one decimal, if it is below 100 and not whole.
func decimal(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// poolsData is the page of all pools.
type poolsData struct {
	Pools  []store.Pool
	Quotas []store.PoolQuota
	Org    store.Org
	// Refused is why the quota that was Typed is not set.
	Refused *store.RefusedError
	Typed   quotaTyped
}

// quotaTyped is the form of a quota.
type quotaTyped struct{ Workspaces, Pool, Machines, Cores, Memory string }

func (c *console) pools(w http.ResponseWriter, r *request) error {
	return c.showPools(w, r, http.StatusOK, poolsData{})
}

func (c *console) showPools(w http.ResponseWriter, r *request, status int, d poolsData) (err error) {
	d.Org = r.org
	if d.Pools, err = r.store.ListPools(r.Context(), r.org.ID, uuid.Nil); err != nil {
		return err
	}
	if d.Quotas, err = r.store.PoolQuotas(r.Context(), r.org.ID); err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "pools", "pools-part", d)
		return nil
	}
	c.render(w, r, status, "pools", view{Nav: "pools", Data: d})
	return nil
}

// Clusters reports whether the pools are of more than one, so that it is to be said of which.
func (d poolsData) Clusters() bool {
	return slices.ContainsFunc(d.Pools, func(p store.Pool) bool { return p.ClusterID != d.Pools[0].ClusterID })
}

func (c *console) setQuota(w http.ResponseWriter, r *request) error {
	field := func(name string) string { return strings.TrimSpace(r.PostFormValue(name)) }
	typed := quotaTyped{field("workspaces"), field("pool"), field("machines"), field("cores"), field("memory")}
	change, err := typed.change()
	if err == nil {
		_, err = r.store.SetPoolQuota(r.Context(), r.org.ID, change)
	}
	if no := refusal(err); no != nil {
		return c.showPools(w, r, no.Status(), poolsData{Refused: no, Typed: typed})
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/pools#quotas", done("quota-set"))
	return nil
}

// change is the quota that was typed; memory is in GiB.
func (q quotaTyped) change() (change store.QuotaChange, err error) {
	const most = 1_000_000_000
	change.Workspaces = q.Workspaces
	if q.Pool != "" {
		id, err := uuid.Parse(q.Pool)
		if err != nil {
			return change, refuse("pool_not_found", q.Pool)
		}
		change.Pool = &id
	}
	for _, part := range []struct {
		label, text string
		times       float64
		to          **int
	}{{"Machines", q.Machines, 1, &change.Machines}, {"Cores", q.Cores, 1, &change.Cores}, {"Memory", q.Memory, 1024, &change.MemoryMiB}} {
		if part.text == "" {
			continue
		}
		value, err := strconv.ParseFloat(part.text, 64)
		number := int(value * part.times)
		if err != nil || value < 0 || value*part.times > most || float64(number) != value*part.times {
			return change, refuse("bad_number", part.label)
		}
		*part.to = &number
	}
	return change, nil
}

func (c *console) deleteQuota(w http.ResponseWriter, r *request) error {
	id, _ := uuid.Parse(r.PostFormValue("quota")) // else SQL finds none
	err := r.store.DeletePoolQuota(r.Context(), r.org.ID, id)
	if no := refusal(err); no != nil {
		c.redirect(w, r, "/pools#quotas", refusedFlash(no))
		return nil
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/pools#quotas", done("quota-deleted"))
	return nil
}

// poolData is the page of one pool.
type poolData struct {
	P   store.PoolDetail
	Org store.Org
	// Refused is why the image's name that was typed is not set.
	Refused     *store.RefusedError
	Image, Name string
}

func (c *console) pool(w http.ResponseWriter, r *request) error {
	return c.showPool(w, r, http.StatusOK, poolData{})
}

func (c *console) showPool(w http.ResponseWriter, r *request, status int, d poolData) error {
	found, err := r.store.PoolByRef(r.Context(), r.org.ID, uuid.Nil, r.PathValue("id"))
	if err != nil {
		return err
	}
	d.Org = r.org
	if d.P, err = r.store.PoolDetail(r.Context(), found); err != nil {
		return err
	}
	if r.Header.Get("HX-Request") != "" {
		c.part(w, r, "pool", "pool-part", d)
		return nil
	}
	c.render(w, r, status, "pool", view{Nav: "pools", Data: d})
	return nil
}

// MoreMachines are how many machines have a place in the pool and are not listed.
func (d poolData) MoreMachines() int { return d.P.Machines - len(d.P.Reservations) }

// places are the places of machines, of which an admin may free what is left over in the pool
// FreeIn.
type places struct {
	List   []store.Reservation
	FreeIn string
}

// freePlace gives back a place that is left over.
func (c *console) freePlace(w http.ResponseWriter, r *request) error {
	found, err := r.store.PoolByRef(r.Context(), r.org.ID, uuid.Nil, r.PathValue("id"))
	if err != nil {
		return err
	}
	workspace, _ := uuid.Parse(r.PostFormValue("workspace")) // else SQL finds none
	machine := r.PostFormValue("machine")
	said := done("place-freed", machine)
	if no := refusal(r.store.FreePlace(r.Context(), workspace, machine)); no != nil {
		said = refusedFlash(no)
	}
	c.redirect(w, r, "/pools/"+found.ID.String(), said)
	return nil
}

func (c *console) setPoolImage(w http.ResponseWriter, r *request) error {
	d := poolData{Image: strings.TrimSpace(r.PostFormValue("image")), Name: strings.TrimSpace(r.PostFormValue("name"))}
	return c.namePoolImage(w, r, d, done("pool-image-set", d.Image, d.Name))
}

func (c *console) deletePoolImage(w http.ResponseWriter, r *request) error {
	d := poolData{Image: r.PostFormValue("image")}
	return c.namePoolImage(w, r, d, done("pool-image-deleted", d.Image))
}

// namePoolImage sets what an image is called in a pool; without a name it is called the same.
func (c *console) namePoolImage(w http.ResponseWriter, r *request, d poolData, said flash) error {
	found, err := r.store.PoolByRef(r.Context(), r.org.ID, uuid.Nil, r.PathValue("id"))
	if err == nil {
		err = r.store.SetPoolImage(r.Context(), found.ID, d.Image, d.Name)
	}
	if no := refusal(err); no != nil && found.ID != uuid.Nil {
		d.Refused = no
		return c.showPool(w, r, no.Status(), d)
	} else if err != nil {
		return err
	}
	c.redirect(w, r, "/pools/"+found.ID.String()+"#images", said)
	return nil
}
