-- What Supabase's Realtime has in a project's database, as far as broadcasts need it: after the
-- migrations of github.com/supabase/realtime (lib/realtime/tenants/repo/migrations), the newest
-- definition of realtime.send among them. Realtime itself reads the rows of realtime.messages by
-- logical replication; here a trigger tells the fake server of them.
CREATE SCHEMA IF NOT EXISTS realtime;
GRANT USAGE ON SCHEMA realtime TO anon, authenticated, service_role;

CREATE TABLE realtime.messages (
  topic       text NOT NULL,
  extension   text NOT NULL,
  payload     jsonb,
  event       text,
  private     boolean DEFAULT false,
  updated_at  timestamp NOT NULL DEFAULT now(),
  inserted_at timestamp NOT NULL DEFAULT now(),
  id          uuid NOT NULL DEFAULT gen_random_uuid(),
  PRIMARY KEY (id, inserted_at)
) PARTITION BY RANGE (inserted_at);
ALTER TABLE realtime.messages ENABLE ROW LEVEL SECURITY;
GRANT SELECT, INSERT, UPDATE ON realtime.messages TO anon, authenticated, service_role;
CREATE TABLE realtime.messages_of_all_days PARTITION OF realtime.messages DEFAULT;

CREATE FUNCTION realtime.send(payload jsonb, event text, topic text, private boolean DEFAULT true) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  generated_id  uuid;
  final_payload jsonb;
BEGIN
  BEGIN
    generated_id := gen_random_uuid();
    IF payload ? 'id' THEN
      final_payload := payload;
    ELSE
      final_payload := jsonb_set(payload, '{id}', to_jsonb(generated_id));
    END IF;
    EXECUTE format('SET LOCAL realtime.topic TO %L', topic);
    INSERT INTO realtime.messages (id, payload, event, topic, private, extension)
    VALUES (generated_id, final_payload, event, topic, private, 'broadcast');
  EXCEPTION
    WHEN OTHERS THEN
      RAISE WARNING 'WarnSendingBroadcastMessage: %', SQLERRM;
  END;
END $$;

CREATE FUNCTION realtime.tell_the_fake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('realtime_fake', jsonb_build_object('id', NEW.id, 'topic', NEW.topic, 'event', NEW.event, 'payload', NEW.payload, 'private', NEW.private)::text);
  RETURN NULL;
END $$;
CREATE TRIGGER tell_the_fake AFTER INSERT ON realtime.messages FOR EACH ROW EXECUTE FUNCTION realtime.tell_the_fake();
