package console

// Since lets tests compare the server's words for a time with the script's.
var Since = since
