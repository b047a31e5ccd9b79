// Package admin is the HTTP server for operators and their tools. It serves readiness, metrics, the log level, and
// debug documents about resources and clients (Debug).
//
// Changes (Controls, the log level, a reload) need the Unix socket: the file system decides who may open it.
//
// The package must not know how the relay works: it calls small interfaces.
package admin
