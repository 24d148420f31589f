"""The remoting protocol, sans-I/O: conversion between bytes and commands.

Must not import asyncio, socket, threading, time or random.
"""
