// Package config is what an agent's operator decides: a TOML file and the
// environment, read strictly. Every key has an environment twin, and the
// environment wins. All problems are reported at once.
//
// The keys are listed in one table, keys.go, which reads the environment,
// checks values and writes the reference. Package config must not know what
// the agent does with a setting.
package config
