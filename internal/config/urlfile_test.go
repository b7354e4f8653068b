package config

import (
	"strings"
	"testing"
)

func TestURLFile(t *testing.T) {
	t.Parallel()
	const other = "postgres://agent@elsewhere/tendril"
	full := write(t, "url", testURL+"\n", 0o440)
	for _, tc := range []struct {
		about   string
		file    string // of table queue
		environ []string
		want    string
	}{
		{"by the file", "url_file = \"" + full + "\"", nil, testURL},
		{"by the environment", "", []string{"TENDRIL_QUEUE_URL_FILE=" + full}, testURL},
		{"environment before the file", "url = \"" + other + "\"", []string{"TENDRIL_QUEUE_URL_FILE=" + full}, testURL},
		{"URL of the environment before any file", "url_file = \"/none\"", []string{"TENDRIL_QUEUE_URL=" + other, "TENDRIL_QUEUE_URL_FILE=/none"}, other},
		{"before Supabase's name", "", []string{"TENDRIL_QUEUE_URL_FILE=" + full, "SUPABASE_URL=" + project}, testURL},
	} {
		path := write(t, "tendril.toml", "[queue]\n"+tc.file, 0o600)
		got, err := Load(path, append([]string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_API_TOKEN=" + testToken}, tc.environ...))
		if err != nil || got.Queue.URL != tc.want {
			t.Errorf("%s: Load() url = %q, %v, want %q", tc.about, got.Queue.URL, err, tc.want)
		}
	}
}

// What is wrong with the file is said once, and never with what is in it.
func TestURLFileRefused(t *testing.T) {
	t.Parallel()
	open := write(t, "url", testURL, 0o644)
	empty := write(t, "url", "\n", 0o600)
	odd := write(t, "url", "mysql://agent:hunter2@db/tendril", 0o600)
	unencoded := write(t, "url", "postgres://agent:hunter2@2@db/tendril", 0o600)
	for _, tc := range []struct{ file, want string }{
		{`url_file = "/none/url"`, `queue.url_file = "/none/url": cannot be read: stat /none/url: no such file or directory`},
		{`url_file = "` + open + `"`, `queue.url_file = "` + open + `": others may read it (mode 0644); run: chmod o= "` + open + `"`},
		{`url_file = "` + empty + `"`, `queue.url_file = "` + empty + `": is empty; it must hold ` + queueURLs},
		{`url_file = "` + odd + `"`, `queue.url (` + odd + `): must be ` + queueURLs},
		{`url_file = "` + unencoded + `"`, `queue.url: write @ in its user or password as %40, # as %23 and / as %2F`},
		{"url = \"postgres://db/tendril\"\nurl_file = \"" + odd + `"`, `queue.url_file: queue.url is set as well; keep one of them`},
	} {
		path := write(t, "tendril.toml", "[queue]\n"+tc.file, 0o600)
		_, err := Load(path, []string{"HOME=/h", "TENDRIL_NAME=a", "TENDRIL_API_TOKEN=" + testToken})
		wantProblems(t, "Load("+tc.file+")", err, tc.want)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Load(%s) error = %v, want one without the password", tc.file, err)
		}
	}
}

func TestHealthListen(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		":9090": true, "127.0.0.1:9090": true, "localhost:0": true, "[::1]:9090": true, "0.0.0.0:65535": true,
		"9090": false, ":http": false, ":65536": false, ":-1": false, "http://127.0.0.1:9090": false, "a b:1": false, "::1:9090": false,
	} {
		got, err := Load("", minimal("TENDRIL_HEALTH_LISTEN="+text))
		if (err == nil) != good || good && got.Health.Listen != text {
			t.Errorf("Load(health.listen %q) = %q, %v, want it accepted: %t", text, got.Health.Listen, err, good)
		}
	}
}
