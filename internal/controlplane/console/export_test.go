package console

// Since lets tests compare the server's words for a time with the script's.
var Since = since

// NewInstallation is what the pages show of how to start an agent.
var NewInstallation = newInstallation
