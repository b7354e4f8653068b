package ironic

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"

	"github.com/tendril-run/tendril/internal/pool"
	"github.com/tendril-run/tendril/internal/provision"
)

// mostImages bounds what is read of Glance's list.
const mostImages = 1000

// image finds an image by the pool's name of it, or by Glance's id or name. Templates give no
// addresses: Ironic's conductor would read whatever file or page they name.
func (d *Driver) image(ctx context.Context, name string) (pool.ImageSource, error) {
	var known []string
	for _, i := range d.config.Images {
		if i.Name == name {
			return i, nil
		}
		known = append(known, i.Name)
	}
	all, err := d.glance(ctx)
	if err != nil {
		return pool.ImageSource{}, err
	}
	var found []images.Image
	for _, i := range all {
		if i.ID == name {
			return pool.ImageSource{Name: name, Source: i.ID}, nil
		}
		if i.Name == name {
			found = append(found, i)
		}
		known = append(known, i.Name)
	}
	if len(found) == 1 {
		return pool.ImageSource{Name: name, Source: found[0].ID}, nil
	}
	text := fmt.Sprintf("Image %s not found in the pool %s%s", name, d.config.Name, provision.DidYouMean(name, known))
	if len(found) > 1 {
		text = fmt.Sprintf("Glance has %d images named %s; write the id of one", len(found), name)
	}
	return pool.ImageSource{}, &pool.CodeError{Code: provision.CodeImageNotFound, Err: fmt.Errorf("%s. Its operator adds images to [[pools.images]] in the agent's configuration", text)}
}

// listTime is how long Glance's list is good: each machine of a run asks for its image.
const listTime = 10 * time.Second

// glance lists Glance's active images; none where the agent signs in to no Keystone, or that has no
// image service.
func (d *Driver) glance(ctx context.Context) (all []images.Image, err error) {
	d.listing.Lock()
	defer d.listing.Unlock()
	if !d.listedAt.IsZero() && time.Since(d.listedAt) < d.client.scaled(listTime) {
		return d.stored, nil
	}
	if all, err = d.glanceNow(ctx); err == nil {
		d.stored, d.listedAt = all, time.Now()
	}
	return all, err
}

func (d *Driver) glanceNow(ctx context.Context) (all []images.Image, err error) {
	err = d.client.call(ctx, "list Glance's images", func(ctx context.Context, _ *gophercloud.ServiceClient) error {
		all = nil
		d.client.mu.Lock()
		api := d.client.glance
		d.client.mu.Unlock()
		if api == nil {
			return nil
		}
		query := url.Values{"limit": {"200"}, "status": {"active"}}
		for page := 0; ; page++ {
			var body struct {
				Images []images.Image `json:"images"`
				Next   string         `json:"next"`
			}
			if err := get(ctx, api, api.ServiceURL("images")+"?"+query.Encode(), &body); err != nil {
				return err
			}
			all = append(all, body.Images...)
			if body.Next == "" || len(body.Images) == 0 {
				return nil
			}
			if len(all) >= mostImages {
				return nil // what is beyond is found by none
			}
			marker := body.Images[len(body.Images)-1].ID
			if query.Get("marker") == marker {
				return &problem{class: classLarge, text: "Glance's list of images has no end"}
			}
			query.Set("marker", marker)
		}
	})
	return all, err
}

// imageInfo describes an image to a deployment, as instance_info has it.
func imageInfo(i pool.ImageSource) map[string]any {
	info := map[string]any{"image_source": i.Source}
	for name, value := range map[string]string{
		"image_checksum": i.Checksum, "image_os_hash_algo": i.HashAlgo, "image_os_hash_value": i.HashValue,
		"kernel": i.Kernel, "ramdisk": i.Ramdisk, "image_type": i.Type, "image_disk_format": i.Format,
	} {
		if value != "" {
			info[name] = value
		}
	}
	return info
}

// listed are the images of the pool's nodes, the configured ones first.
func (d *Driver) listed(ctx context.Context) (all []pool.Image, err error) {
	for _, i := range d.config.Images {
		all = append(all, pool.Image{Name: i.Name, ID: i.Source, CloudInit: true})
	}
	stored, err := d.glance(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range stored {
		if i.Name != "" && !slices.ContainsFunc(all, func(known pool.Image) bool { return known.Name == i.Name }) && !strings.HasPrefix(i.Name, "deploy-") {
			all = append(all, pool.Image{Name: i.Name, ID: i.ID, CloudInit: true})
		}
	}
	// By their ids, too: a name may be another image's tomorrow, or several images'.
	for _, i := range stored {
		if !strings.HasPrefix(i.Name, "deploy-") {
			all = append(all, pool.Image{Name: i.ID, ID: i.ID, CloudInit: true})
		}
	}
	return all, nil
}
