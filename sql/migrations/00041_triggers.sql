-- Triggers are in sql/functions. To create one again locks its table against writers, so
-- each is created only when its statement has changed.
ALTER TABLE tendril.function_files ADD COLUMN triggers jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN tendril.function_files.triggers IS 'The statement of each trigger in it, by "NAME ON TABLE".';
