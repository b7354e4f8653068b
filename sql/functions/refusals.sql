-- How a function refuses a request, and small checks of texts and numbers that a request brings.

-- Raises an error that PostgREST turns into the HTTP status in its SQLSTATE (PT409 is 409).
-- p_reason is a stable word for programs, p_message and p_hint are for people.
CREATE OR REPLACE FUNCTION tendril.refuse(p_sqlstate text, p_reason text, p_message text, p_hint text DEFAULT '') RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = p_sqlstate, MESSAGE = tendril.one_line(p_message, 2000), DETAIL = tendril.one_line(p_reason, 200),
    HINT = tendril.one_line(p_hint, 2000);
END $$;

-- A text as one printable line of at most p_most characters. PostgREST puts a refusal's message
-- into the status line of its answer, where a line break would begin a header of the caller's
-- choice.
CREATE OR REPLACE FUNCTION tendril.one_line(p_text text, p_most int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  -- Control characters, line and paragraph separators, and marks that turn the direction.
  c_hidden CONSTANT text := '[\u0001-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+';
BEGIN
  RETURN CASE WHEN length(p_text) > p_most THEN left(regexp_replace(left(p_text, p_most), c_hidden, ' ', 'g'), p_most - 1) || '…'
              ELSE regexp_replace(p_text, c_hidden, ' ', 'g') END;
END $$;

-- Several problems as one message that fits a refusal: as many of them as there is room for,
-- twenty at most, and the number of those left out. Each unknown name is a problem: those of a
-- large snapshot would fill the server's log.
CREATE OR REPLACE FUNCTION tendril.problem_list(p_problems text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  c_room  CONSTANT int := 1900; -- characters, of the 2000 that refuse() lets through
  v_list  text := left(p_problems[1], c_room);
  v_shown int := 1;
BEGIN
  WHILE v_shown < least(cardinality(p_problems), 20) AND length(v_list) + length(p_problems[v_shown + 1]) + 2 <= c_room LOOP
    v_shown := v_shown + 1;
    v_list := v_list || '; ' || p_problems[v_shown];
  END LOOP;
  RETURN v_list || CASE WHEN cardinality(p_problems) > v_shown THEN format('; (%s more)', cardinality(p_problems) - v_shown) ELSE '' END;
END $$;

-- What a person says of why, as one line.
CREATE OR REPLACE FUNCTION tendril.reason(p_reason text, p_needed boolean DEFAULT false) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_reason text := btrim(regexp_replace(left(coalesce(p_reason, ''), 10000), '[[:cntrl:][:space:]]+', ' ', 'g'));
BEGIN
  IF length(p_reason) > 10000 OR length(v_reason) > 1000 THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', format('p_reason: %s characters, more than the 1000 allowed', length(p_reason)));
  ELSIF p_needed AND v_reason = '' THEN
    PERFORM tendril.refuse('PT422', 'bad_reason', 'p_reason: missing; others will want to know');
  END IF;
  RETURN v_reason;
END $$;

-- What kind of JSON it is, in the words of a message.
CREATE OR REPLACE FUNCTION tendril.kind_of(p_json jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN CASE jsonb_typeof(p_json) WHEN 'object' THEN 'an object' WHEN 'array' THEN 'a list' WHEN 'null' THEN 'null' ELSE 'a ' || jsonb_typeof(p_json) END;
END $$;

-- What is wrong with a text; null when nothing is. Here and below, and in internal/provision,
-- in the same words.
CREATE OR REPLACE FUNCTION tendril.text_problem(p_text jsonb, p_longest int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
  v_text text := p_text #>> '{}';
BEGIN
  RETURN CASE
    WHEN jsonb_typeof(p_text) <> 'string' THEN 'must be a string, not ' || tendril.kind_of(p_text)
    WHEN v_text = '' THEN 'missing'
    WHEN length(v_text) > p_longest THEN format('%s characters, at most %s are allowed', length(v_text), p_longest)
    WHEN v_text ~ '[\u0001-\u001f\u007f-\u009f]' THEN 'must not contain control characters'
  END;
END $$;

-- Likewise what is given to an engine as an argument.
CREATE OR REPLACE FUNCTION tendril.argument_problem(p_text jsonb, p_longest int) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN coalesce(tendril.text_problem(p_text, p_longest), CASE WHEN p_text #>> '{}' LIKE '-%' THEN 'must not start with a dash' END);
END $$;

-- What is wrong with a list of addresses.
CREATE OR REPLACE FUNCTION tendril.address_problems(p_path text, p_list jsonb) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_list) <> 'array' THEN
    RETURN ARRAY[format('%s: must be a list, not %s', p_path, tendril.kind_of(p_list))];
  ELSIF jsonb_array_length(p_list) > 100 THEN
    RETURN ARRAY[format('%s: %s addresses, at most 100 are allowed', p_path, jsonb_array_length(p_list))];
  END IF;
  RETURN ARRAY(SELECT format('%s[%s]: %s', p_path, a.ord - 1, tendril.argument_problem(a.value, 512))
               FROM jsonb_array_elements(p_list) WITH ORDINALITY a (value, ord)
               WHERE tendril.argument_problem(a.value, 512) IS NOT NULL ORDER BY a.ord);
END $$;

-- What is wrong with a whole number; null when nothing is.
CREATE OR REPLACE FUNCTION tendril.number_problem(p_number jsonb, p_least bigint, p_most bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  IF jsonb_typeof(p_number) <> 'number' THEN
    RETURN 'must be a number, not ' || tendril.kind_of(p_number);
  ELSIF p_number::numeric <> trunc(p_number::numeric) OR p_number::numeric NOT BETWEEN p_least AND p_most THEN
    RETURN format('must be a whole number from %s to %s', p_least, p_most);
  END IF;
  RETURN NULL;
END $$;

-- Whether a number in it is vast: 1e131071 takes ten bytes as JSON and 131 KB written out, so
-- a few of them fill the memory of whoever reads the row.
CREATE OR REPLACE FUNCTION tendril.has_vast_number(p_json jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  -- Zero is looked at as well, for 0e-16383 is one. As one array, for
  -- jsonb_path_query moves all that is left with each row that it returns.
  RETURN EXISTS (SELECT FROM jsonb_array_elements(jsonb_path_query_array(p_json,
                   'strict $.** ? (@.type() == "number" && !(@ > 1e-400 && @ < 1e400 || @ < -1e-400 && @ > -1e400))')) n
                 WHERE scale(n::numeric) > 400 OR abs(n::numeric) >= 1e400);
END $$;

-- A time in a message.
CREATE OR REPLACE FUNCTION tendril.at(p_at timestamptz) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
  RETURN to_char(p_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"');
END $$;

-- A time that an agent tells, where it is within a day of p_now, the database's clock; else
-- p_now. Times such as infinity or the year 20000 cannot be shown by every reader, and a log
-- with one of them could not be read at all.
CREATE OR REPLACE FUNCTION tendril.plausible_time(p_at timestamptz, p_now timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$ SELECT CASE WHEN p_at BETWEEN p_now - interval '1 day' AND p_now + interval '1 day' THEN p_at ELSE p_now END $$;
