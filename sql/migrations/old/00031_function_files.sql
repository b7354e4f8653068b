-- Functions stand in sql/functions, each once. They are applied after the
-- migrations, in one transaction, file by file where the file has changed.

CREATE TABLE tendril.function_files (
  file      text PRIMARY KEY,
  digest    text NOT NULL,            -- SHA-256 of the file's text, in hexadecimal
  functions text[] NOT NULL           -- schema.name of each function in it
);
COMMENT ON TABLE tendril.function_files IS 'Which files of functions this database has.';
