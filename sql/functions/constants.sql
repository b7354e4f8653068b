-- Constants: numbers of rows, bytes and seconds that are the same for every installation; what an
-- operator may change is in tendril.settings. PostgreSQL replaces a call by its value when it
-- plans a query, so a constant costs nothing and hides nothing from the planner. That takes a
-- parsed body (RETURN) and no search path.

-- What agents send

-- Claims that one call may name.
CREATE OR REPLACE FUNCTION tendril.max_claims() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000;

-- How often a run that was set down is taken up again after its agent has crashed or was lost.
CREATE OR REPLACE FUNCTION tendril.max_set_downs() RETURNS int LANGUAGE sql IMMUTABLE RETURN 20;

-- How often agents try to take up a run that was set down, before it ends.
CREATE OR REPLACE FUNCTION tendril.max_take_ups() RETURNS int LANGUAGE sql IMMUTABLE RETURN 5;

-- Log chunks in one call.
CREATE OR REPLACE FUNCTION tendril.max_chunks() RETURNS int LANGUAGE sql IMMUTABLE RETURN 128;

-- Bytes of one log chunk.
CREATE OR REPLACE FUNCTION tendril.max_chunk_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 65536;

-- Bytes of all log chunks of one call.
CREATE OR REPLACE FUNCTION tendril.max_chunks_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1048576;

-- Bytes of one report.
CREATE OR REPLACE FUNCTION tendril.max_report_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1048576;

-- How far the number of a report may be ahead of the newest stored one: more would use the numbers
-- up.
CREATE OR REPLACE FUNCTION tendril.max_report_gap() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000000;

-- Characters of a run's error message that are stored.
CREATE OR REPLACE FUNCTION tendril.max_error_message() RETURNS int LANGUAGE sql IMMUTABLE RETURN 16384;

-- Resources in progress that are shown.
CREATE OR REPLACE FUNCTION tendril.max_running() RETURNS int LANGUAGE sql IMMUTABLE RETURN 50;

-- Changes outside Terraform that are stored of one refresh.
CREATE OR REPLACE FUNCTION tendril.max_drift() RETURNS int LANGUAGE sql IMMUTABLE RETURN 200;

-- Bytes of one part of a blob.
CREATE OR REPLACE FUNCTION tendril.part_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 524288;

-- Bytes of the variables that a template declares.
CREATE OR REPLACE FUNCTION tendril.max_variables_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 524288;

-- The largest whole number that every JSON reader keeps exact: 2^53 - 1.
CREATE OR REPLACE FUNCTION tendril.max_exact_number() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 9007199254740991;

-- Characters of an address that is a key: what an index row can hold. provision.Key in Go has the
-- same number.
CREATE OR REPLACE FUNCTION tendril.max_address_key() RETURNS int LANGUAGE sql IMMUTABLE RETURN 600;

-- Characters of an action that are shown.
CREATE OR REPLACE FUNCTION tendril.quoted_action() RETURNS int LANGUAGE sql IMMUTABLE RETURN 40;

-- What people send

-- Bytes of a snapshot.
CREATE OR REPLACE FUNCTION tendril.max_snapshot_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 262144;

-- Bytes of a small object in a request, such as labels, and of a signed text.
CREATE OR REPLACE FUNCTION tendril.max_object_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 8192;

-- Characters of a name.
CREATE OR REPLACE FUNCTION tendril.max_name() RETURNS int LANGUAGE sql IMMUTABLE RETURN 200;

-- Characters of an e-mail address.
CREATE OR REPLACE FUNCTION tendril.max_email() RETURNS int LANGUAGE sql IMMUTABLE RETURN 320;

-- Characters of a person's reason.
CREATE OR REPLACE FUNCTION tendril.max_reason() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000;

-- Resource addresses in one list.
CREATE OR REPLACE FUNCTION tendril.max_addresses() RETURNS int LANGUAGE sql IMMUTABLE RETURN 100;

-- Characters of a resource address in a request.
CREATE OR REPLACE FUNCTION tendril.max_address() RETURNS int LANGUAGE sql IMMUTABLE RETURN 512;

-- Characters of a template's description, and of why an inspection failed.
CREATE OR REPLACE FUNCTION tendril.max_description() RETURNS int LANGUAGE sql IMMUTABLE RETURN 4000;

-- The lowest priority of a provision.
CREATE OR REPLACE FUNCTION tendril.least_priority() RETURNS int LANGUAGE sql IMMUTABLE RETURN (-100);

-- The highest priority of a provision.
CREATE OR REPLACE FUNCTION tendril.most_priority() RETURNS int LANGUAGE sql IMMUTABLE RETURN 100;

-- What one person or organisation may have

-- Valid API tokens of one person.
CREATE OR REPLACE FUNCTION tendril.max_api_tokens() RETURNS int LANGUAGE sql IMMUTABLE RETURN 100;

-- Webhooks of one organisation.
CREATE OR REPLACE FUNCTION tendril.max_webhooks() RETURNS int LANGUAGE sql IMMUTABLE RETURN 50;

-- Test messages to one webhook within a minute.
CREATE OR REPLACE FUNCTION tendril.max_webhook_tests() RETURNS int LANGUAGE sql IMMUTABLE RETURN 10;

-- Inspections that may wait in one organisation.
CREATE OR REPLACE FUNCTION tendril.max_waiting_inspections() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000;

-- Requests with idempotency keys that are stored for one person.
CREATE OR REPLACE FUNCTION tendril.max_kept_requests() RETURNS int LANGUAGE sql IMMUTABLE RETURN 10000;

-- Bytes of answers to requests with idempotency keys that are stored for one person.
CREATE OR REPLACE FUNCTION tendril.max_kept_answer_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 16777216;

-- Bytes of one stored answer.
CREATE OR REPLACE FUNCTION tendril.max_answer_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 65536;

-- What functions answer

-- Agent tokens of a cluster in one list.
CREATE OR REPLACE FUNCTION tendril.max_tokens_listed() RETURNS int LANGUAGE sql IMMUTABLE RETURN 200;

-- Agent tokens of a cluster whose holders are woken by Realtime, the newest first.
CREATE OR REPLACE FUNCTION tendril.max_tokens_woken() RETURNS int LANGUAGE sql IMMUTABLE RETURN 4;

-- Rows of a log in one page.
CREATE OR REPLACE FUNCTION tendril.max_page_rows() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000;

-- Bytes of a log in one page.
CREATE OR REPLACE FUNCTION tendril.max_page_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1048576;

-- Queued provisions that are counted to say how many are ahead.
CREATE OR REPLACE FUNCTION tendril.max_ahead_counted() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000;

-- Queued provisions ahead that are named.
CREATE OR REPLACE FUNCTION tendril.max_ahead_named() RETURNS int LANGUAGE sql IMMUTABLE RETURN 10;

-- Runs that are named where all slots are busy.
CREATE OR REPLACE FUNCTION tendril.max_busy_named() RETURNS int LANGUAGE sql IMMUTABLE RETURN 5;

-- Newest provisions of an organisation that are searched for how an engine version fared.
CREATE OR REPLACE FUNCTION tendril.runs_searched() RETURNS int LANGUAGE sql IMMUTABLE RETURN 200;

-- Characters of a name that a message quotes.
CREATE OR REPLACE FUNCTION tendril.quoted_name() RETURNS int LANGUAGE sql IMMUTABLE RETURN 100;

-- Characters of a value that a message quotes.
CREATE OR REPLACE FUNCTION tendril.quoted_value() RETURNS int LANGUAGE sql IMMUTABLE RETURN 200;

-- Characters of a database error that a message quotes.
CREATE OR REPLACE FUNCTION tendril.quoted_error() RETURNS int LANGUAGE sql IMMUTABLE RETURN 500;

-- Times

-- An agent whose last heartbeat is at most this old is online. The view cluster_overview has the
-- same number.
CREATE OR REPLACE FUNCTION tendril.online_within() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '45 seconds';

-- An agent whose last heartbeat is at most this old is stale, and offline after that. The view
-- cluster_overview has the same number.
CREATE OR REPLACE FUNCTION tendril.stale_within() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '5 minutes';

-- An agent without a heartbeat for this long no longer counts, and makes room for a new one.
CREATE OR REPLACE FUNCTION tendril.forgotten_after() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 day';

-- How long a held call goes without being repeated, and so a claim's lease without being renewed.
CREATE OR REPLACE FUNCTION tendril.held_at_most() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '20 seconds';

-- How often heartbeats write when a cluster and an agent were last seen.
CREATE OR REPLACE FUNCTION tendril.seen_every() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '15 seconds';

-- How often the last use of a credential is written.
CREATE OR REPLACE FUNCTION tendril.used_every() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 minute';

-- How often the progress of a run is shown, because every viewer is told.
CREATE OR REPLACE FUNCTION tendril.shown_every() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 second';

-- Share of a lease after which the pulse is stamped again.
CREATE OR REPLACE FUNCTION tendril.pulse_share() RETURNS double precision LANGUAGE sql IMMUTABLE RETURN 0.05::double precision;

-- How long trellis may take an inspection before an agent gets it, and how long a queued one waits
-- before it may be requested again.
CREATE OR REPLACE FUNCTION tendril.inspection_head_start() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 minute';

-- A running claim whose lease ran out this long ago is overdue.
CREATE OR REPLACE FUNCTION tendril.overdue_after() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '1 minute';

-- How old the count of what a cluster uses may be when a limit is checked.
CREATE OR REPLACE FUNCTION tendril.usage_fresh() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '30 seconds';

-- How often timers count what clusters use.
CREATE OR REPLACE FUNCTION tendril.usage_every() RETURNS interval LANGUAGE sql IMMUTABLE RETURN interval '5 minutes';

-- Housekeeping

-- Blobs that one call deletes because they have expired.
CREATE OR REPLACE FUNCTION tendril.max_blobs_expired() RETURNS int LANGUAGE sql IMMUTABLE RETURN 20;

-- Rows of a log in one archive row.
CREATE OR REPLACE FUNCTION tendril.archive_part_rows() RETURNS int LANGUAGE sql IMMUTABLE RETURN 16384;

-- Bytes of text in one archive row.
CREATE OR REPLACE FUNCTION tendril.archive_part_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 4194304;

-- Bytes of text that one call archives.
CREATE OR REPLACE FUNCTION tendril.archive_call_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 33554432;

-- Logs that one call looks at.
CREATE OR REPLACE FUNCTION tendril.archive_call_logs() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1000;

-- Bytes of text of the logs that one call deletes.
CREATE OR REPLACE FUNCTION tendril.delete_call_bytes() RETURNS int LANGUAGE sql IMMUTABLE RETURN 67108864;

-- Provisions of earlier releases that one call enters in log_ends.
CREATE OR REPLACE FUNCTION tendril.log_ends_batch() RETURNS int LANGUAGE sql IMMUTABLE RETURN 5000;

-- Bytes of SYSTEM lines that agents may append beyond a log's limit.
CREATE OR REPLACE FUNCTION tendril.kept_beyond_limit() RETURNS int LANGUAGE sql IMMUTABLE RETURN 1048576;

-- Bytes that a log chunk counts as at least, because its row takes more.
CREATE OR REPLACE FUNCTION tendril.least_chunk_weight() RETURNS int LANGUAGE sql IMMUTABLE RETURN 16;
