package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

const heading = `What others have made and is part of tendril and trellis, with its licences and
notices as they came. Tendril's own licence is in LICENSE.

`

var rule = strings.Repeat("=", 79) + "\n"

// write writes the texts of all parts into one file, the same for the same
// parts.
func write(path string, parts []part) error {
	var b strings.Builder
	b.WriteString(heading)
	for _, p := range parts {
		fmt.Fprintf(&b, "  %s %s: %s\n", p.name, p.version, strings.Join(p.licenses, ", "))
	}
	for _, p := range parts {
		for _, name := range slices.Sorted(maps.Keys(p.texts)) {
			fmt.Fprintf(&b, "\n%s%s %s, %s\n%s\n%s\n", rule, p.name, p.version, name, rule, strings.TrimRight(p.texts[name], " \t\r\n"))
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644) //nolint:gosec // for everybody to read
}

// billSuffix ends the name of a bill of materials, as CycloneDX has it.
const billSuffix = ".cdx.json"

// writeBills writes the bill of each program beside it.
func writeBills(judge *judge, version string, files []string) error {
	for _, file := range files {
		content, err := bill(judge, version, file)
		if err == nil {
			err = os.WriteFile(file+billSuffix, content, 0o644) //nolint:gosec // for everybody to read
		}
		if err != nil {
			return fmt.Errorf("write what %s consists of: %w", file, err)
		}
	}
	return nil
}

// bill returns what a program consists of, which must have been built from the
// files here. It has no time and no number of its own: the same program makes the
// same bytes.
func bill(judge *judge, version, file string) ([]byte, error) {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return nil, err
	}
	setting := func(key string) string {
		for _, s := range info.Settings {
			if s.Key == key {
				return s.Value
			}
		}
		return ""
	}
	parts, err := allowedParts(judge, []target{{setting("GOOS") + "/" + setting("GOARCH"), []string{info.Path}}})
	if err != nil {
		return nil, err
	}
	if err := sameModules(info, parts); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	name := path.Base(info.Path)
	self := component(part{name: name, version: version, licenses: []string{"Apache-2.0"},
		purl: packageURL("golang", info.Main.Path, "v"+version) + "#" + strings.TrimPrefix(info.Path, info.Main.Path+"/")})
	self.Type = cdx.ComponentTypeApplication
	self.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest(string(program))}}
	self.Properties = &[]cdx.Property{ // as cyclonedx-gomod calls them
		{Name: "cdx:gomod:build:env:GOOS", Value: setting("GOOS")}, {Name: "cdx:gomod:build:env:GOARCH", Value: setting("GOARCH")},
	}
	var components []cdx.Component
	var refs []string
	for _, p := range parts {
		c := component(p)
		components, refs = append(components, c), append(refs, c.BOMRef)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &self}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: self.BOMRef, Dependencies: &refs}}
	var b bytes.Buffer
	// Scanners take some time to learn a newer one.
	err = cdx.NewBOMEncoder(&b, cdx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bom, cdx.SpecVersion1_6)
	return b.Bytes(), err
}

// component is a part as the bill has it.
func component(p part) cdx.Component {
	var licenses cdx.Licenses
	for _, license := range p.licenses {
		l := &cdx.License{ID: license}
		if license == publicDomain {
			l = &cdx.License{Name: license}
		}
		licenses = append(licenses, cdx.LicenseChoice{License: l})
	}
	return cdx.Component{
		BOMRef: p.purl, Type: cdx.ComponentTypeLibrary, Name: strings.TrimSuffix(p.name, " (npm)"), Version: p.version, PackageURL: p.purl, Licenses: &licenses,
	}
}

// sameModules refuses a program that consists of other modules than the files
// here say: their licences would be those of something else.
func sameModules(info *buildinfo.BuildInfo, parts []part) error {
	var built, here []string
	for _, m := range info.Deps {
		built = append(built, packageURL("golang", m.Path, m.Version))
	}
	built = append(built, packageURL("golang", "stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	for _, p := range parts {
		if strings.HasPrefix(p.purl, "pkg:golang/") {
			here = append(here, p.purl)
		}
	}
	slices.Sort(built)
	slices.Sort(here)
	for _, purl := range append(slices.Clone(built), here...) {
		if slices.Contains(built, purl) != slices.Contains(here, purl) {
			return fmt.Errorf("it was not built from the files here: %s is only in one of them", purl)
		}
	}
	return nil
}
