// Package tracing tells an OpenTelemetry collector how long what takes, by OTLP over HTTP,
// where the environment says so (OTEL_EXPORTER_OTLP_ENDPOINT and the like). Without that
// there is no Tracer, and a nil one costs nothing.
//
//	Start ─▶ Tracer.Record, once something has ended ─▶ the SDK's batches ─▶ exporter ─▶ collector
//	From, Into: the traceparent of a request, as W3C Trace Context has it
//
// The exporter is our own because the one of OpenTelemetry links gRPC, 7 MB that each child
// process would start with (open-telemetry/opentelemetry-go#2579); sampling, batches and what
// the environment says of them are the SDK's.
//
// The package must not know what a run is, nor any value that could be secret: a span has a
// name and the attributes that its caller gives it, which never are a variable's value.
package tracing
