"""Reports: conversion of records to text, pages and plots for people. Nothing here plans, trains or measures."""
