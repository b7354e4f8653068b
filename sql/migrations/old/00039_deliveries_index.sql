-- Deliveries are found by their webhook. An index by time alone would also be taken, and
-- badly, for the newest ones of a webhook.
SELECT tendril.lock_tables('public.webhook_deliveries');
DROP INDEX public.webhook_deliveries_created;
