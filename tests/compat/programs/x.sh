#!/bin/sh
echo "@W x.sh rank=$RANK local=$LOCAL_RANK args=$*"
