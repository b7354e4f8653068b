package api

// What the document says of webhooks.
var (
	webhookFields = map[string]string{
		"kind": "What its messages look like.", "host": "All of its URL that can be read again.", "events": "What it is told of.",
		"cluster_id": "The cluster that it is restricted to. Absent: any.", "cluster": "The name of that cluster.",
		"workspace": "What the names of the workspaces that it is restricted to are like; * is anything.", "enabled": "Whether it is told anything.",
		"disabled_why":  "Why it was switched off by itself: failing (nothing arrived for three days), or gone (it answered 410).",
		"failing_since": "Since when nothing has arrived.",
	}
	deliveryFields = map[string]string{
		"event": "What it tells of; test for one that only tries.", "provision_id": "The provision that it is about.", "status": "How it stands; failed: it was given up.",
		"attempts": "Each time that it was sent, the oldest first.", "next_attempt_at": "When it is sent next, while it waits.", "finished_at": "When it arrived, or was given up.",
		"payload": "What is sent to a generic webhook, but for the URL of the page.",
	}
	attemptFields = map[string]string{
		"at": "When it ended.", "code": "The HTTP status that it was answered. Absent: it was not.", "duration_ms": "How long it took, in milliseconds.", "error": "Why it did not arrive.",
	}
)
