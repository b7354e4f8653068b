package charts

import (
	"fmt"
	"strings"
	"testing"
)

// unrestricted is what the restricted profile of Pod Security has against an
// object's pods; see "Pod Security Standards" of the Kubernetes documentation.
// A root file system that can be written is not its business, but is ours.
func unrestricted(o object) (wrong []string) {
	spec := podSpec(o)
	if spec == nil {
		return nil
	}
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for _, host := range []string{"hostNetwork", "hostPID", "hostIPC"} {
		if follow(spec, host) == true {
			complain("%s", host)
		}
	}
	volumes, _ := follow(spec, "volumes").([]any)
	for _, volume := range volumes {
		fields, _ := volume.(map[string]any)
		for kind := range fields {
			switch kind {
			case "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret":
			default:
				complain("volume %v is a %s", fields["name"], kind)
			}
		}
	}
	for _, list := range []string{"initContainers", "containers"} {
		containers, _ := follow(spec, list).([]any)
		for _, container := range containers {
			for _, problem := range unrestrictedContainer(spec, container) {
				complain("container %v: %s", follow(container, "name"), problem)
			}
		}
	}
	return wrong
}

// podSpec is the pod that an object is or makes, nil for none.
func podSpec(o object) any {
	switch o.get("kind") {
	case "Pod":
		return o.get("spec")
	case "CronJob":
		return o.get("spec", "jobTemplate", "spec", "template", "spec")
	default:
		return o.get("spec", "template", "spec")
	}
}

func unrestrictedContainer(pod, container any) (wrong []string) {
	own := func(path ...any) any { return follow(container, append([]any{"securityContext"}, path...)...) }
	either := func(path ...any) any {
		if value := own(path...); value != nil {
			return value
		}
		return follow(pod, append([]any{"securityContext"}, path...)...)
	}
	if own("privileged") == true {
		wrong = append(wrong, "privileged")
	}
	if own("allowPrivilegeEscalation") != false {
		wrong = append(wrong, "allowPrivilegeEscalation is not false")
	}
	if own("readOnlyRootFilesystem") != true {
		wrong = append(wrong, "readOnlyRootFilesystem is not true")
	}
	if either("runAsNonRoot") != true {
		wrong = append(wrong, "runAsNonRoot is not true")
	}
	if user := either("runAsUser"); user == 0 {
		wrong = append(wrong, "runAsUser is 0")
	}
	if profile := either("seccompProfile", "type"); profile != "RuntimeDefault" && profile != "Localhost" {
		wrong = append(wrong, fmt.Sprintf("seccompProfile is %v", profile))
	}
	if dropped := fmt.Sprint(own("capabilities", "drop")); dropped != "[ALL]" {
		wrong = append(wrong, "capabilities.drop is "+dropped)
	}
	if added := own("capabilities", "add"); added != nil && fmt.Sprint(added) != "[NET_BIND_SERVICE]" {
		wrong = append(wrong, fmt.Sprintf("capabilities.add is %v", added))
	}
	ports, _ := follow(container, "ports").([]any)
	for _, port := range ports {
		if at := follow(port, "hostPort"); at != nil {
			wrong = append(wrong, fmt.Sprintf("hostPort %v", at))
		}
	}
	return wrong
}

// A judge that lets everything through would say nothing of the charts.
func TestUnrestricted(t *testing.T) {
	t.Parallel()
	const good = `{apiVersion: v1, kind: Pod, spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, volumes: [{name: v, emptyDir: {}}], containers: [
		{name: c, securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}}]}}`
	for _, tc := range []struct{ old, new, says string }{
		{"", "", ""},
		{"runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot is not true"},
		{"runAsNonRoot: true", "runAsNonRoot: true, runAsUser: 0", "runAsUser is 0"},
		{"RuntimeDefault", "Unconfined", "seccompProfile is Unconfined"},
		{"emptyDir: {}", "hostPath: {path: /}", "volume v is a hostPath"},
		{"volumes:", "hostPID: true, volumes:", "hostPID"},
		{"allowPrivilegeEscalation: false, ", "", "allowPrivilegeEscalation is not false"},
		{"readOnlyRootFilesystem: true, ", "", "readOnlyRootFilesystem is not true"},
		{"[ALL]", "[NET_RAW]", "capabilities.drop is [NET_RAW]"},
		{"drop: [ALL]", "drop: [ALL], add: [SYS_ADMIN]", "capabilities.add is [SYS_ADMIN]"},
		{"allowPrivilegeEscalation: false", "allowPrivilegeEscalation: false, privileged: true", "privileged"},
		{"{name: c,", "{name: c, ports: [{hostPort: 80}],", "hostPort 80"},
		{"securityContext: {allowPriv", "securityContext: {runAsNonRoot: false, allowPriv", "runAsNonRoot is not true"},
	} {
		got := strings.Join(unrestricted(decode(t, strings.Replace(good, tc.old, tc.new, 1))[0]), "; ")
		if (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
			t.Errorf("unrestricted(pod with %q) = %q, want %q", tc.new, got, tc.says)
		}
	}
}
