-- What the control plane's API needs beyond what people do here: that a request
-- sent twice is carried out once, and to show the tokens that a cluster has.

-- The requests that their senders have named by a key, with what they were
-- answered, for a day. An answer that holds a secret is not kept.
CREATE TABLE tendril.requests (
  user_id  uuid NOT NULL,
  key      text NOT NULL CHECK (length(key) BETWEEN 1 AND 200),
  digest   text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'), -- of the request
  location text NOT NULL,
  answer   jsonb,
  made_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (user_id, key)
);
CREATE INDEX requests_made ON tendril.requests (made_at);
