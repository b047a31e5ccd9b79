// Package cliview prints the data of commands: resources as kubectl does, and tables and sentences
// about upstreams, clients, explanations, plans and orders.
//
// The package must not know where its data comes from.
package cliview
