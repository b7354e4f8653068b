package sql

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

//go:embed functions/*.sql
var functions embed.FS

// accessFile closes everything and then grants by name. It is applied last, and
// whenever another file was, because a new function begins with the database's
// default privileges.
const accessFile = "access"

// functionFile is one file of sql/functions: the functions of one topic, each as
// it is now.
type functionFile struct {
	name     string // without .sql
	text     string
	digest   string   // SHA-256 of the text, in hexadecimal
	names    []string // schema.name of each function that the file creates
	triggers []trigger
}

// trigger is one that a file creates. To create one locks its table against writers,
// so it is done only where the statement is new.
type trigger struct {
	name, table string // of the table, with its schema
	statement   string
}

var (
	createsFunction = regexp.MustCompile(`(?m)^CREATE OR REPLACE FUNCTION ((?:tendril|public)\.[a-z_0-9]+)`)
	createsTrigger  = regexp.MustCompile(`(?ms)^CREATE OR REPLACE TRIGGER (\w+) .*? ON ([a-z_.]+)\b.*?;$`)
)

// readFunctions returns the files by name, with access last.
func readFunctions(files fs.FS) ([]functionFile, error) {
	names, err := fs.Glob(files, "functions/*.sql")
	if err != nil {
		return nil, fmt.Errorf("list the embedded functions: %w", err)
	}
	var all []functionFile
	var access functionFile
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read the embedded functions: %w", err)
		}
		sum := sha256.Sum256(text)
		f := functionFile{name: strings.TrimSuffix(path.Base(name), ".sql"), text: string(text), digest: hex.EncodeToString(sum[:])}
		for _, m := range createsFunction.FindAllStringSubmatch(f.text, -1) {
			f.names = append(f.names, m[1])
		}
		for _, m := range createsTrigger.FindAllStringSubmatch(f.text, -1) {
			f.triggers = append(f.triggers, trigger{name: m[1], table: m[2], statement: m[0]})
		}
		f.text = createsTrigger.ReplaceAllString(f.text, "")
		if f.name == accessFile {
			access = f
		} else {
			all = append(all, f)
		}
	}
	return append(all, access), nil
}

// functionsBlock is a PL/pgSQL block that brings the functions of a database up
// to these files, in the transaction that it runs in. Files whose digest the
// database has are passed over.
func functionsBlock(files []functionFile) string {
	rows := make([]string, len(files))
	for i, f := range files {
		names := "'{}'"
		if len(f.names) > 0 {
			names = "'{" + strings.Join(f.names, ",") + "}'"
		}
		triggers := "'{}'::jsonb"
		if len(f.triggers) > 0 {
			var list []string
			for _, t := range f.triggers {
				list = append(list, fmt.Sprintf("'%s ON %s', $trigger$%s$trigger$", t.name, t.table, t.statement))
			}
			triggers = "jsonb_build_object(" + strings.Join(list, ",\n") + ")"
		}
		rows[i] = fmt.Sprintf("    ('%[1]s', '%[2]s', %[3]s::text[], %[5]s, $functions_%[1]s$\n%[4]s$functions_%[1]s$)", f.name, f.digest, names, f.text, triggers)
	}
	return strings.Replace(applyFunctions, "FILES", strings.Join(rows, ",\n"), 1)
}

// functionsCurrent asks whether a database has these files and no others.
func functionsCurrent(files []functionFile) string {
	rows := make([]string, len(files))
	for i, f := range files {
		rows[i] = fmt.Sprintf("('%s', '%s')", f.name, f.digest)
	}
	return fmt.Sprintf(`SELECT NOT EXISTS (
  (SELECT file, digest FROM tendril.function_files EXCEPT (VALUES %[1]s))
  UNION ALL ((VALUES %[1]s) EXCEPT SELECT file, digest FROM tendril.function_files))`, strings.Join(rows, ", "))
}

// The oldest transaction that sees a function's row is in its xmin: what a file
// has not touched, though it lists the name, is a signature that is gone.
const applyFunctions = `DECLARE
  v_file    record;
  v_old     record;
  v_before  text[];
  v_names   text[] := '{}';
  v_trigger record;
  v_there   jsonb := (SELECT coalesce(jsonb_object_agg(t.key, t.value), '{}') FROM tendril.function_files f, jsonb_each(f.triggers) t);
  v_kept    jsonb := '{}';
  v_files   text[] := '{}';
  v_changed boolean := false;
BEGIN
  LOCK TABLE tendril.function_files IN SHARE ROW EXCLUSIVE MODE; -- one migration at a time
  PERFORM set_config('check_function_bodies', 'off', true); -- files may use each other's functions
  FOR v_file IN SELECT * FROM (VALUES
FILES
  ) f (name, digest, functions, triggers, body) LOOP
    v_files := v_files || v_file.name;
    v_names := v_names || v_file.functions;
    v_kept := v_kept || v_file.triggers;
    CONTINUE WHEN EXISTS (SELECT FROM tendril.function_files f WHERE f.file = v_file.name AND f.digest = v_file.digest)
      AND NOT (v_changed AND v_file.name = 'access');
    v_changed := true;
    v_before := ARRAY(SELECT p.oid || ':' || p.xmin FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                      WHERE n.nspname || '.' || p.proname = ANY (v_file.functions));
    BEGIN
      EXECUTE v_file.body;
    EXCEPTION WHEN invalid_function_definition THEN
      -- The answer's type, an argument's name or a default has changed.
      FOR v_old IN SELECT p.oid::regprocedure AS signature FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                   WHERE n.nspname || '.' || p.proname = ANY (v_file.functions) LOOP
        BEGIN
          EXECUTE format('DROP FUNCTION %s', v_old.signature);
        EXCEPTION WHEN dependent_objects_still_exist THEN NULL; -- a policy or a trigger has it
        END;
      END LOOP;
      EXECUTE v_file.body;
    END;
    -- A signature that the file no longer has.
    FOR v_old IN SELECT p.oid::regprocedure AS signature FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                 WHERE n.nspname || '.' || p.proname = ANY (v_file.functions) AND p.oid || ':' || p.xmin = ANY (v_before) LOOP
      EXECUTE format('DROP FUNCTION %s', v_old.signature);
    END LOOP;
    FOR v_trigger IN SELECT t.key, t.value AS statement FROM jsonb_each_text(v_file.triggers) t LOOP
      -- Those from before statements were recorded are as the files had them then.
      CONTINUE WHEN coalesce(v_there ->> v_trigger.key, v_trigger.statement) = v_trigger.statement
        AND EXISTS (SELECT FROM pg_trigger g WHERE NOT g.tgisinternal AND g.tgname = split_part(v_trigger.key, ' ON ', 1) AND g.tgrelid = split_part(v_trigger.key, ' ON ', 2)::regclass);
      EXECUTE v_trigger.statement;
    END LOOP;
    INSERT INTO tendril.function_files (file, digest, functions, triggers) VALUES (v_file.name, v_file.digest, v_file.functions, v_file.triggers)
    ON CONFLICT (file) DO UPDATE SET digest = excluded.digest, functions = tendril.function_files.functions || excluded.functions, triggers = excluded.triggers;
  END LOOP;
  FOR v_old IN SELECT t.key AS signature FROM jsonb_object_keys(v_there) t (key) WHERE NOT v_kept ? t.key LOOP
    EXECUTE format('DROP TRIGGER IF EXISTS %s', v_old.signature);
  END LOOP;
  -- Functions that no file has any more. All of schema tendril is ours; public is not.
  FOR v_old IN SELECT p.oid::regprocedure AS signature FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
               WHERE (n.nspname = 'tendril' OR n.nspname || '.' || p.proname IN (SELECT unnest(f.functions) FROM tendril.function_files f))
                 AND n.nspname || '.' || p.proname <> ALL (v_names) LOOP
    EXECUTE format('DROP FUNCTION %s', v_old.signature);
  END LOOP;
  DELETE FROM tendril.function_files WHERE file <> ALL (v_files);
  UPDATE tendril.function_files f SET functions = ARRAY(SELECT DISTINCT u FROM unnest(f.functions) u WHERE u = ANY (v_names))
  WHERE v_changed;
  IF v_changed THEN
    NOTIFY pgrst, 'reload schema';
  END IF;
END;
`
