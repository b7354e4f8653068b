package rpcqueue

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tendril-run/tendril/internal/provision"
	"github.com/tendril-run/tendril/internal/queue/rpcwire"
)

// A call's arguments are JSON of what is meant, whatever the text.
func TestEncode(t *testing.T) {
	t.Parallel()
	claim, at := uuid.New(), time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	for _, chunks := range [][]provision.LogChunk{
		nil,
		{{Stream: provision.Stdout, Text: "a\n", EmittedAt: at}},
		{
			{Stream: provision.System, Text: "quotes \" ' \\ \x1b[31mred\x1b[0m\ttab\r\n\u2028 <&> ünï 🌱", EmittedAt: at},
			{Stream: provision.Stderr, Text: strings.Repeat("\x01", 20), EmittedAt: at.Add(time.Nanosecond)},
			{Stream: provision.Stdout, Text: "broken \xff text", EmittedAt: at},
		},
	} {
		body, err := encode(rpcwire.InsertProvisionLog{Hash: "a-hash", Claim: claim, First: 7, Chunks: chunks})
		if err != nil {
			t.Fatal(err)
		}
		var got rpcwire.InsertProvisionLog
		decoder := json.NewDecoder(strings.NewReader(string(body)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&got); err != nil || decoder.More() {
			t.Fatalf("encode() = %s: %v", body, err)
		}
		var want []provision.LogChunk
		for _, c := range chunks {
			c.Text = strings.ToValidUTF8(c.Text, "\uFFFD")
			want = append(want, c)
		}
		if got.Hash != "a-hash" || got.Claim != claim || got.First != 7 || !reflect.DeepEqual(got.Chunks, want) {
			t.Errorf("encode() = %s, want %+v", body, want)
		}
		if chunks == nil && !strings.Contains(string(body), `"p_chunks":null`) {
			t.Errorf("encode(no chunks) = %s, want p_chunks null: a question only", body)
		}
	}
}

// What a batch of lines costs before it is sent.
func BenchmarkEncode(b *testing.B) {
	text := strings.Repeat("aws_instance.web[\"a\"]: Still creating... [id=i-0abc, <none> => known] \x1b[32m10s elapsed\x1b[0m\n", 110)
	var chunks []provision.LogChunk
	for range 50 {
		chunks = append(chunks, provision.LogChunk{Stream: provision.Stdout, Text: text, EmittedAt: time.Now()})
	}
	claim := uuid.New()
	b.SetBytes(int64(50 * len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encode(rpcwire.InsertProvisionLog{Hash: strings.Repeat("a", 64), Claim: claim, First: 1, Chunks: chunks}); err != nil {
			b.Fatal(err)
		}
	}
}
