package api

// fields says what the fields of types are that other packages have, for the
// document: those packages must not know that there is one. A test finds what is
// missing.
var fields = map[string]map[string]string{
	"Webhook": webhookFields, "MadeWebhook": webhookFields, "Delivery": deliveryFields, "DeliveryAttempt": attemptFields,
	"Provision": {
		"number":              "What people call it. Numbers grow with time, and are not without gaps.",
		"cluster":             "The name of the cluster it is for.",
		"workspace":           "The name of the workspace it is for.",
		"operation":           "What it does there.",
		"status":              "How it stands. SUCCESS, FAILED and CANCELLED are for good, but for a FAILED with error_code agent_lost, whose agent may report after all.",
		"waiting":             "Why it is not running yet, when something but its turn is in the way.",
		"why_waiting":         "Everything that must be over before it can go on, while it is QUEUED or AWAITING_APPROVAL.",
		"stage":               "How far it has come.",
		"percent":             "How much of the stage is done, from 0 to 100.",
		"running":             "The resources that are being worked on, at most 50.",
		"stages":              "The stages it has reached, in their order. Lists leave them out.",
		"template":            "What it deploys.",
		"commit":              "The commit that the version stands for, once an agent has looked.",
		"engine":              "The engine and its version.",
		"plan":                "What its plan comes to. Lists leave out its resources.",
		"plan_digest":         "Names the plan that awaits approval, or did: a SHA-256 in hexadecimal.",
		"outputs":             "The template's outputs, by their names.",
		"error_code":          "Why it failed or was cancelled: a word that stays the same.",
		"error_message":       "The same for people, with what to do next. It may have several lines.",
		"requested_by":        "The person who asked for it. Absent where a schedule has.",
		"requested_by_name":   "What that person is called.",
		"cancel_requested_at": "When somebody asked for it to be stopped.",
		"created_at":          "When it was asked for.",
		"started_at":          "When an agent first began with it.",
		"finished_at":         "When it ended.",
		"state_lock":          "Who holds the lock of the workspace's state, as far as a run met it. Lists leave it out.",
		"as_of":               "When this was read, by the clock of which all these times are.",
		"config_snapshot":     "What was asked for. Lists leave it out.",
	},
	"Reason": {
		"reason": "Which thing it waits for: a word that stays the same.", "message": "The same for people, without a full stop.",
		"detail": "What the message names, by keys that belong to the reason.",
	},
	"StageTime": {
		"attempt": "Which attempt it belongs to: one begins whenever the provision is queued, so after an approval as well.",
		"stage":   "Which stage.", "started_at": "When it was reached.", "ended_at": "When the next one was. Absent while it lasts.",
	},
	"Source": {
		"repo": "The repository.", "version": "A tag or a full commit.", "path": "The template's directory there; absent: the root.",
	},
	"Running": {"address": "The resource.", "action": "What is done to it: create, update, delete and the like.", "since": "Since when."},
	"PlanSummary": {
		"add": "Resources to make.", "change": "To change in place.", "destroy": "To destroy.", "replace": "To destroy and make anew.",
		"import": "To take into the state.", "move": "To call otherwise.", "forget": "To leave out of the state, and in the world.",
		"resources": "Each of them, at most 1,000, those that take something away first.", "truncated": "How many changes are not listed.",
	},
	"PlannedChange": {
		"address": "The resource.", "action": "create, update, delete, replace, import, move or forget.", "from": "What a moved one was called before.",
		"id": "What an imported one is known by.", "reason": "Why, in the engine's word, such as replace_because_tainted.",
		"attributes": "What of it changes, at most 100.", "truncated": "How many attributes are not listed.",
	},
	"AttributeChange": {
		"path": "Such as tags.name or ports[0].", "before": "The value until now, as JSON. Absent where there is none, or it is not shown.",
		"after": "The value from then on, likewise.", "sensitive": "The values are not shown, for one of them is sensitive.",
		"unknown": "The value is known after the apply.", "long": "The values are not shown, for one is longer than 1 KiB.",
		"replaces": "This is why the resource is replaced.",
	},
	"Output": {
		"type": "The engine's type, as JSON.", "value": "The value, as JSON. Absent for a sensitive one.", "sensitive": "Its value is not shown.",
		"sealed":  "The value of a sensitive one, as JSON, in an armoured age message to the snapshot's requester_key.",
		"omitted": "The value was too large to be recorded.",
	},
	"HeldLock": {
		"id": "What the lock is called.", "who": "Who holds it, in the engine's words.", "operation": "For what, in the engine's words.",
		"created": "Since when, in the engine's words.", "number": "The provision that met it.", "at": "When that was.",
	},
	"Standing": {
		"name": "The workspace's name.", "cluster": "The name of the cluster it is on.", "template": "The template that it belongs to: repository//path.",
		"resources": "How many resources exist there.", "doing": "What goes on there, or keeps it from being used, for people. Absent: nothing.",
		"number": "Its newest provision.", "status": "How that stands.", "since": "Since when: when it ended, else when it was asked for.",
	},
	"WorkspaceDetail": {
		"home": "The agent that has the state as a local file, and its host. Absent where the state is shared.", "locked_at": "Since when a person has kept it from running anything.",
		"locked_by": "Who has.", "lock_reason": "Why.", "state_version": "The newest managed state, counted here. Absent where the state is elsewhere.",
		"state_serial": "The serial that it has within.", "state_at": "When it was written.", "state_lock": "Who holds the lock of the state, as far as a run met it.",
		"drift_count": "How many resources have changed outside. Absent: not known.", "drift_at": "When that was looked for.",
	},
	"Resource": {
		"address": "What it is called in the template.", "type": "Its type.", "provider": "Which provider it is of.", "external_id": "What it is known by at the provider.",
		"ip_addresses": "Its own IP addresses, as far as they are not sensitive.", "status": "created, or tainted: left half made by an apply that failed.",
		"updated_at": "When something of this last changed.",
	},
	"Drift": {
		"workspace": "The name of the workspace.", "cluster": "The name of the cluster it is on.", "every_seconds": "How often it is looked for, in seconds. Absent: only when asked to.",
		"looked_at": "When it was looked for last. Absent: never, or what was found is put right since.", "count": "How many resources have changed outside.",
		"changes": "Each of them, at most 200.",
	},
	"StateVersion": {
		"version": "Which one, counted from 1.", "serial": "The serial that it has within.", "bytes": "How large it is, sealed, in bytes.",
		"stored_at": "When it was written.", "provision_id": "The provision whose run wrote it.",
	},
	"Cluster": {
		"name": "The cluster's name.", "connectivity": "ONLINE: an agent was heard of within 45 seconds; STALE: within 5 minutes.",
		"paused_at": "Since when its agents claim nothing. Absent: they do.", "last_seen_at": "When one of its agents was heard of last.",
		"age_public_key": "What variables are sealed to. Absent until an agent has brought one.", "agents": "Those heard of within a day.",
	},
	"Agent": {
		"name": "The agent's name.", "host": "Where it runs.", "version": "Its version.", "slots": "How many provisions it runs at a time.",
		"alive": "It was heard of within 45 seconds.", "last_heartbeat_at": "When it was heard of last.",
	},
	"NewCluster":   {"cluster_id": "The cluster's id.", "token": "What its agents sign in with. Nobody can read it again."},
	"NewToken":     {"token_id": "The token's id.", "token": "The token. Nobody can read it again."},
	"ClusterToken": {"expires_at": "When it ends. Absent: never.", "revoked_at": "When somebody ended it.", "created_by": "Who had it made. Absent: the control plane."},
	"Policy":       policy,
	"PolicyChange": policy,
	"Template": {
		"name": "What it is called in the catalogue.", "repo": "Its repository.", "path": "Its directory there; absent: the root.",
		"version": "The version that is offered first.", "description": "What it is for.", "approval": "When a plan of it must be approved.",
	},
	"Org":    {"name": "The organisation's name.", "role": "Your role there."},
	"MeBody": {"id": "Your id.", "name": "What you are called.", "email": "Your mail address."},
	"Member": {
		"user_id": "The person's id.", "name": "What they are called.", "email": "Their mail address.", "role": "Their role.", "since": "Since when they belong to it.",
	},
	"AuditEvent": {
		"id": "Counts what was done, growing with time.", "at": "When.", "actor": "Who. Absent: the control plane itself.", "actor_name": "What they are called.",
		"action": "What, such as approve_provision.", "object": "What kind of thing it was done to, such as provision.", "object_id": "Which one.",
		"called": "What that is called: the name, or # and the number. Absent where it is gone.", "detail": "More about it, by keys that belong to the action.",
	},
	"APIToken":   {"token": "The token. Nobody can read it again.", "expires_at": "When it ends."},
	"Credential": {"kind": "api_token.", "name": "What uses it.", "last_used_at": "When it was last used.", "expires_at": "When it ends."},
	"LogRow": {
		"seq": "Its number: 1, 2, 3, … without a gap.", "stream": "Where it was printed: STDOUT, STDERR, or SYSTEM for what Tendril says.",
		"text": "Some lines, or a part of one; at most 64 KiB. What was printed may hold anything: escape it.", "emitted_at": "When it was printed.",
	},
	"Event": {
		"id": "Counts events, growing with time.", "kind": "What happened: stage, resource_started, resource_finished, resource_failed and the like.",
		"at": "When.", "detail": "More about it, by keys that belong to the kind.",
	},
	"Sight": {
		"status": "How the provision stands.", "stage": "How far it has come.", "percent": "How much of the stage is done, from 0 to 100.",
		"running": "The resources that are being worked on.", "error_code": "Why it failed or was cancelled.", "error_message": "The same for people.",
		"cancel_requested": "Somebody has asked for it to be stopped.", "started_at": "When an agent first began with it.", "finished_at": "When it ended.",
		"last_seq": "The newest row of its log.", "last_event": "Its newest event.", "unsettled": "It has ended as far as anybody knows; its agent may still report.",
	},
	"NewWebhookInputBody":    {"name": "What it is called.", "enabled": "Whether anything is sent."},
	"ChangeWebhookInputBody": {"name": "What it is called.", "url": "Where to.", "enabled": "Whether anything is sent."},
	"NewInvitationInputBody": {"role": "The role they will have."},
	"Invitation": {
		"email": "The invited person's address.", "user_id": "The invited person's id, where the invitation is not for an address.", "role": "The role they will have.",
		"expires_at": "The invitation can be accepted until then.", "expired": "The invitation can no longer be accepted.", "declined": "The person has declined it.",
	},
	"OwnInvitation": {
		"org_id": "The organisation's id.", "org": "The organisation's name.", "role": "The role you will have.", "invited_by": "The admin who invites you, by name or address.",
		"expires_at": "You can accept the invitation until then.",
	},
	"Inspection": {
		"status": "How far the look at it is: wanted, handed (an agent must), queued, done or failed. Empty: nobody has asked.", "inspected": "variables is what that version declares.",
		"variables": "Each of them.", "commit": "The commit that was looked at.", "inspected_by": "Who looked: trellis, agent or run.", "inspected_at": "When.", "problem": "Why it could not be looked at.",
		"reason": "The same as a word.", "provision": "The provision of the agent's run.",
	},
	"Variable": {
		"name": "What it is called.", "type": "Its type, in the engine's words.", "description": "What it is for.", "default": "The value it has unless given, as JSON.", "required": "It must be given.",
		"sensitive": "It belongs into sealed_vars.", "nullable": "It may be null.", "ephemeral": "It is in no plan and no state.", "type_json": "Its type as JSON.",
	},
	// What is the same everywhere.
	"": {"id": "Its id.", "created_at": "When it was made.", "items": "The entries, in their order."},
}

var policy = map[string]string{
	"approval": "When a plan must be approved before it is applied: never, destructive (something is destroyed, replaced or forgotten) or always.", "approvers": "The least role of who may approve.",
	"four_eyes": "Who asked for it may not approve it.", "approval_expiry": "How long a plan waits for approval, from 1 minute to 90 days, in PostgreSQL's words, such as 7 days or 36h.",
}

// words are the values that a field of an answer may have, where it has only
// these.
var words = map[string][]any{
	"Provision.operation": operations, "Provision.status": statuses, "StatusAnswerBody.status": statuses, "PlanAnswerBody.status": statuses, "Standing.status": statuses, "WorkspaceDetail.status": statuses,
	"Provision.stage": stages, "StageTime.stage": stages, "Cluster.connectivity": {"ONLINE", "STALE", "OFFLINE"}, "Org.role": roles, "Member.role": roles,
	"Policy.approval": approvals, "PolicyChange.approval": approvals, "Template.approval": approvals, "Policy.approvers": {"operator", "admin"}, "PolicyChange.approvers": {"operator", "admin"},
	"LogRow.stream": {"STDOUT", "STDERR", "SYSTEM"},
}

var (
	operations = []any{"plan", "apply", "destroy", "refresh", "unlock", "state"}
	statuses   = []any{"QUEUED", "PROCESSING", "AWAITING_APPROVAL", "SUCCESS", "FAILED", "CANCELLED"}
	stages     = []any{"queued", "checkout", "validate", "engine", "init", "plan", "approval", "apply", "outputs", "done"}
	roles      = []any{"viewer", "operator", "admin"}
	approvals  = []any{"never", "destructive", "always"}
)
