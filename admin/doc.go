// Package admin is the relay's HTTP side for operators and their tools: readiness,
// metrics, the log level, and debug endpoints that show what the relay holds and whom
// it serves, in the shapes in which istiod shows the same. The debug documents are
// also what the xDS debug types answer with (PROTOCOL D1, D2): see Debug.
//
// Changes (Controls, the log level, a reload) go over a Unix socket only: the file system decides
// who may open it.
//
// The package must not know how any of it works: it reads and calls small interfaces.
package admin
