package redfish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"

	"libvirt.org/go/libvirtxml"
)

// drive is a virtual CD drive or USB port.
type drive struct {
	image string // the URL that is inserted; "": none
	file  string // where it was downloaded to
}

// driveTypes are the drives of a server, with the media that each takes.
var driveTypes = map[string][]string{"Cd": {"CD", "DVD"}, "UsbStick": {"USBStick"}}

func mediaPath(d Domain) string { return serviceRoot + "/Managers/" + d.ID + "/VirtualMedia" }

// drive finds one of a server's.
func (each *system) drive(r *http.Request) (string, *drive, error) {
	name := r.PathValue("drive")
	found := each.drives[name]
	if found == nil {
		return "", nil, unknown("VirtualMedia", name)
	}
	return name, found, nil
}

func (s *Server) media(_ *system, d Domain, w http.ResponseWriter, _ *http.Request) error {
	all := mediaPath(d)
	return show(w, collection(all, "VirtualMediaCollection", "Virtual Media Services", all+"/Cd", all+"/UsbStick"))
}

func (s *Server) medium(each *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	name, in, err := each.drive(r)
	if err != nil {
		return err
	}
	at := mediaPath(d) + "/" + name
	shown := resource{
		"@odata.id": at, "@odata.type": "#VirtualMedia.v1_6_1.VirtualMedia", "Id": name, "Name": "Virtual " + name,
		"MediaTypes": driveTypes[name], "Inserted": in.image != "", "WriteProtected": true, "ConnectedVia": "NotConnected",
		"Image": nil, "ImageName": nil, "Status": status("OK"),
		"Actions": resource{
			"#VirtualMedia.InsertMedia": resource{"target": at + "/Actions/VirtualMedia.InsertMedia"},
			"#VirtualMedia.EjectMedia":  resource{"target": at + "/Actions/VirtualMedia.EjectMedia"},
		},
	}
	if in.image != "" {
		shown["Image"], shown["ConnectedVia"] = in.image, "URI"
		if u, err := url.Parse(in.image); err == nil {
			shown["ImageName"] = path.Base(u.Path)
		}
	}
	return show(w, shown)
}

// insert downloads an image and puts it in a drive. What can't be downloaded leaves the drive as it was.
func (s *Server) insert(each *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	name, in, err := each.drive(r)
	if err != nil {
		return err
	}
	var asked struct {
		Image, UserName, Password string
		Inserted, WriteProtected  *bool
	}
	if err := read(r, &asked); err != nil {
		return err
	}
	switch {
	case asked.Image == "":
		return missing("VirtualMedia.InsertMedia", "Image")
	case in.image != "":
		return in.free()
	case asked.Inserted != nil && !*asked.Inserted || asked.WriteProtected != nil && !*asked.WriteProtected:
		return wrongValue("WriteProtected, Inserted", false, "true")
	}
	// The server is asked for other things while the image arrives, which may take minutes.
	each.mu.Unlock()
	file, err := s.download(r.Context(), asked.Image, asked.UserName, asked.Password)
	each.mu.Lock()
	if err != nil {
		return err
	}
	if d, err = s.hypervisor.Domain(r.Context(), d.ID); err == nil {
		if err = in.free(); err == nil {
			err = s.connect(r.Context(), d, name, file)
		}
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	in.image, in.file = asked.Image, file
	return done(w)
}

// free refuses an image where one is inserted.
func (d *drive) free() error {
	if d.image == "" {
		return nil
	}
	return &problem{http.StatusConflict, "ResourceInUse", "The change to the requested resource failed because the resource is in use or in transit: " + d.image + " is inserted.", nil}
}

// eject empties a drive; one that is empty is fine.
func (s *Server) eject(each *system, d Domain, w http.ResponseWriter, r *http.Request) error {
	name, in, err := each.drive(r)
	if err != nil {
		return err
	}
	if in.image != "" {
		if err := s.connect(r.Context(), d, name, ""); err != nil {
			return err
		}
		file := in.file
		*in = drive{}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return done(w)
}

// download keeps an image in a file, whose path it answers.
func (s *Server) download(ctx context.Context, image, user, password string) (string, error) {
	u, err := url.Parse(image)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", &problem{http.StatusBadRequest, "ActionParameterValueFormatError", fmt.Sprintf("The value '%s' for the parameter Image in the action VirtualMedia.InsertMedia is of a different format than the parameter can accept: http://… or https://….", image), []string{image, "Image", "VirtualMedia.InsertMedia"}}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, image, nil)
	if err != nil {
		return "", err
	}
	if user != "" {
		request.SetBasicAuth(user, password)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return "", &problem{http.StatusBadRequest, "CouldNotEstablishConnection", fmt.Sprintf("The service failed to establish a connection with the URI '%s': %v.", image, err), []string{image}}
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return "", &problem{http.StatusBadRequest, "ResourceMissingAtURI", fmt.Sprintf("The resource at the URI '%s' was not found.", image), []string{image}}
	case http.StatusUnauthorized, http.StatusForbidden:
		return "", &problem{http.StatusBadRequest, "AccessDenied", fmt.Sprintf("While attempting to establish a connection to '%s', the service denied access: %s.", image, response.Status), []string{image}}
	default:
		return "", &problem{http.StatusBadRequest, "GeneralError", fmt.Sprintf("The image at '%s' can't be read: %s.", image, response.Status), []string{image}}
	}
	tooLarge := &problem{http.StatusInsufficientStorage, "InsufficientStorage", fmt.Sprintf("Insufficient storage or memory is available to complete the request: an image may have %d bytes.", s.maxImage), nil}
	if response.ContentLength > s.maxImage {
		return "", tooLarge
	}
	file, err := os.CreateTemp(s.dir, "media-*.img")
	if err != nil {
		return "", err
	}
	n, err := io.Copy(file, io.LimitReader(response.Body, s.maxImage+1))
	err = errors.Join(err, file.Close())
	switch {
	case err != nil:
		err = &problem{http.StatusBadRequest, "CouldNotEstablishConnection", fmt.Sprintf("The image at '%s' broke off after %d bytes: %v.", image, n, err), []string{image}}
	case n > s.maxImage:
		err = tooLarge
	case n == 0:
		err = &problem{http.StatusBadRequest, "ResourceAtUriInUnknownFormat", fmt.Sprintf("The resource at '%s' is in a format not recognized by the service: it is empty.", image), []string{image}}
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return "", err
	}
	return file.Name(), nil
}

// connect puts a file in a drive of a domain, as it runs and as it starts next; "" empties it.
func (s *Server) connect(ctx context.Context, d Domain, name, file string) error {
	if name == "Cd" {
		return s.connectCD(ctx, d, file)
	}
	return s.connectStick(ctx, d, file)
}

// source is a medium; nil is none.
func source(file string) *libvirtxml.DomainDiskSource {
	if file == "" {
		return nil
	}
	return &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: file}}
}

// cd finds the first CD drive of a document.
func cd(document *libvirtxml.Domain) *libvirtxml.DomainDisk {
	if document == nil || document.Devices == nil {
		return nil
	}
	at := slices.IndexFunc(document.Devices.Disks, func(disk libvirtxml.DomainDisk) bool { return disk.Device == "cdrom" && disk.Target != nil })
	if at < 0 {
		return nil
	}
	return &document.Devices.Disks[at]
}

func (s *Server) connectCD(ctx context.Context, d Domain, file string) error {
	if running := cd(d.Running); running != nil {
		now := *running
		now.Source = source(file)
		now.BackingStore, now.Alias, now.Boot = nil, nil, running.Boot
		if err := s.hypervisor.Change(ctx, d.ID, Exchange, &now); err != nil {
			return err
		}
	}
	next := cd(d.Document)
	if next == nil {
		d.Document.Devices.Disks = append(d.Document.Devices.Disks, libvirtxml.DomainDisk{
			Device: "cdrom", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"},
			Target: &libvirtxml.DomainDiskTarget{Dev: free(d.Document, "sd"), Bus: "sata"}, ReadOnly: &libvirtxml.DomainDiskReadOnly{},
		})
		next = cd(d.Document)
	}
	next.Source = source(file)
	return s.hypervisor.Define(ctx, d.Document)
}

func (s *Server) connectStick(ctx context.Context, d Domain, file string) error {
	if file == "" {
		if d.Running != nil && d.Running.Devices != nil {
			for i := range d.Running.Devices.Disks {
				if disk := &d.Running.Devices.Disks[i]; isStick(disk) {
					if err := s.hypervisor.Change(ctx, d.ID, Detach, disk); err != nil {
						return err
					}
				}
			}
		}
		d.Document.Devices.Disks = slices.DeleteFunc(d.Document.Devices.Disks, func(disk libvirtxml.DomainDisk) bool { return isStick(&disk) })
		return s.hypervisor.Define(ctx, d.Document)
	}
	stick := libvirtxml.DomainDisk{
		Device: "disk", Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw"}, Source: source(file),
		Target:   &libvirtxml.DomainDiskTarget{Dev: free(d.Document, "sd"), Bus: "usb", Removable: "on"},
		ReadOnly: &libvirtxml.DomainDiskReadOnly{}, Alias: &libvirtxml.DomainAlias{Name: stickAlias},
	}
	if d.Power == On {
		if err := s.hypervisor.Change(ctx, d.ID, Attach, &stick); err != nil {
			return err
		}
	}
	d.Document.Devices.Disks = append(d.Document.Devices.Disks, stick)
	return s.hypervisor.Define(ctx, d.Document)
}

// free is a target's name that no disk of a document has, such as sda.
func free(document *libvirtxml.Domain, prefix string) string {
	for letter := 'a'; ; letter++ {
		name := prefix + string(letter)
		if !slices.ContainsFunc(document.Devices.Disks, func(disk libvirtxml.DomainDisk) bool { return disk.Target != nil && disk.Target.Dev == name }) {
			return name
		}
	}
}
