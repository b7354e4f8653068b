-- What agent.json begins with: the cluster prod, whose token is tnd_recorded,
-- and two provisions, each on a workspace of its own.
INSERT INTO public.orgs (id, name) VALUES ('0c000000-0000-4000-8000-000000000001', 'acme');
INSERT INTO public.clusters (id, org_id, name) VALUES ('c1000000-0000-4000-8000-000000000001', '0c000000-0000-4000-8000-000000000001', 'prod');
INSERT INTO tendril.cluster_tokens (cluster_id, digest)
VALUES ('c1000000-0000-4000-8000-000000000001', sha256(sha256('tnd_recorded'::bytea)));
INSERT INTO public.workspaces (id, org_id, cluster_id, name) VALUES
  ('3c000000-0000-4000-8000-000000000001', '0c000000-0000-4000-8000-000000000001', 'c1000000-0000-4000-8000-000000000001', 'acme/prod'),
  ('3c000000-0000-4000-8000-000000000002', '0c000000-0000-4000-8000-000000000001', 'c1000000-0000-4000-8000-000000000001', 'acme/test');
INSERT INTO public.provisions (id, cluster_id, config_snapshot) VALUES
  ('90000000-0000-4000-8000-000000000001', 'c1000000-0000-4000-8000-000000000001',
   '{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1.2.0"}, "terraform_vars": {"name": "Ada"}, "workspace": "acme/prod"}');
INSERT INTO public.provisions (id, cluster_id, config_snapshot) VALUES
  ('90000000-0000-4000-8000-000000000002', 'c1000000-0000-4000-8000-000000000001',
   '{"template_source": {"repo": "https://git.example/acme/envtempl", "version": "v1.2.0"}, "workspace": "acme/test"}');
