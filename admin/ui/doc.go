// Package ui makes the web pages of a relay, at /ui/ of its admin address. It reads data through small functions,
// makes a Page of them, and writes it as HTML that works without JavaScript. With JavaScript, a page updates itself
// when something that it shows has changed.
//
// The pages change nothing: for each action they show the command.
//
// Pages depend only on their input: see Page. The package must not know where the data comes from, or who may see
// it: package admin checks requests.
package ui
