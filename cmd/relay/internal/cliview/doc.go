// Package cliview formats the output of commands: tables as kubectl prints them, sentences, and colors.
//
// The package must not know where its data comes from.
package cliview
