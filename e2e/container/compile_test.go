package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// The stages of the Dockerfile that call Go, and what the others take of them.
var compiling = map[string]string{
	"source":   "",
	"licenses": "THIRD-PARTY-LICENSES.txt /",
	"build":    "out /out",
	"bills":    "out /out",
}

// compile builds the programs on this machine, with the Dockerfile's own commands and only the
// files that Docker gets. It returns the folder to build the images from. In a container, which
// has compiled nothing yet, this takes minutes each time.
func compile(ctx context.Context, dir, version string) (string, error) {
	source, folder := filepath.Join(dir, "source"), filepath.Join(dir, version)
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, "out"), 0o755), sent(ctx, source)); err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root(), "Dockerfile"))
	if err != nil {
		return "", err
	}
	var left strings.Builder
	environ := append(os.Environ(), "CGO_ENABLED=1", "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH, "VERSION="+version, "REVISION="+revision)
	ran := 0
	for i, stage := range regexp.MustCompile(`(?m)^FROM `).Split(string(text), -1) {
		if i == 0 {
			left.WriteString(stage)
			continue
		}
		first, _, _ := strings.Cut(stage, "\n")
		name := first[strings.LastIndex(first, " ")+1:]
		made, compiles := compiling[name]
		switch {
		case !compiles:
			left.WriteString("FROM " + stage)
			continue
		case made != "":
			fmt.Fprintf(&left, "FROM scratch AS %s\nCOPY %s\n", name, made)
		}
		for _, set := range regexp.MustCompile(`(?m)^ENV (.*)$`).FindAllStringSubmatch(stage, -1) {
			for _, one := range strings.Fields(set[1]) {
				if !strings.HasPrefix(one, "GOCACHE=") && !strings.HasPrefix(one, "GOMODCACHE=") { // this machine's are used
					environ = append(environ, one)
				}
			}
		}
		for _, command := range commands(stage) {
			ran++
			command = strings.NewReplacer(" /out/", " "+folder+"/out/", " /THIRD", " "+folder+"/THIRD").Replace(command)
			cmd := exec.CommandContext(ctx, "sh", "-euc", command)
			cmd.Dir = source
			cmd.Env = environ
			if out, err := cmd.CombinedOutput(); err != nil {
				return "", fmt.Errorf("the Dockerfile's %s: %w\n%s", command, err, out)
			}
		}
	}
	if ran != len(compiling)-1 {
		return "", fmt.Errorf("the Dockerfile's stages %v have %d commands; this file knows %d", slices.Sorted(maps.Keys(compiling)), ran, len(compiling)-1)
	}
	return folder, errors.Join(os.WriteFile(filepath.Join(folder, "Dockerfile"), []byte(left.String()), 0o600),
		os.Link(filepath.Join(source, "LICENSE"), filepath.Join(folder, "LICENSE")))
}

// commands are those that a stage runs.
func commands(stage string) (found []string) {
	stage = strings.ReplaceAll(stage, "\\\n", " ")
	for _, run := range regexp.MustCompile(`(?m)^RUN (?:--mount=\S+\s+)*(.*)$`).FindAllStringSubmatch(stage, -1) {
		found = append(found, run[1])
	}
	return found
}

// sent is what Docker is sent of this checkout.
func sent(ctx context.Context, dir string) error {
	client := "docker"
	if _, err := os.Stat("/usr/bin/docker"); err == nil {
		client = "/usr/bin/docker" // as in the Makefile: another one may lack BuildKit
	}
	docker := exec.CommandContext(ctx, client, "build", "--quiet", "--output", dir, "--file", "-", root())
	docker.Env = append(os.Environ(), "DOCKER_BUILDKIT=1")
	docker.Stdin = strings.NewReader("FROM scratch\nCOPY . /\n")
	if out, err := docker.CombinedOutput(); err != nil {
		return fmt.Errorf("ask Docker what it is sent: %w\n%s", err, out)
	}
	return nil
}
