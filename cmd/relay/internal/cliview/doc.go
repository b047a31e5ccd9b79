// Package cliview lays out what commands print: tables as kubectl prints them, sentences, and colors.
//
// The package must not know where its data comes from.
package cliview
