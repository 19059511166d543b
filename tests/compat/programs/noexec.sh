#!/bin/sh
echo "@W noexec"
